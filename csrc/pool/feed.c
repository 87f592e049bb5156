#include "pool/feed.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_LANES = 65536 };

struct feed_set {
    rp_order *order;
    int64_t frames, lanes, first_row;
};

/* One position of the pattern of a mixture. */
struct share {
    uint32_t set;
    uint32_t before; /* positions of this set earlier in the pattern */
};

struct place {
    int64_t position, slot;
};

struct rp_feed {
    struct rp_feed_options options;
    struct feed_set *set;
    size_t n_sets;
    int64_t lanes;         /* of all sets */
    struct share *pattern; /* [lanes], of several sets */
    struct place *place;   /* [options.batch], of several sets */
    int64_t *given;        /* instead of sets: the rows */
    int64_t rows_end;
    int64_t at, number; /* first position and number of the next batch */
    int64_t given_rows; /* of that batch, in parts */
};

static rp_status check_options(const struct rp_feed_options *o, struct rp_error *err)
{
    if (o->batch < 1 || o->batch > INT32_MAX) {
        RP_FAIL(err, RP_E_ARG, "batch = %lld, allowed are 1..2^31-1", (long long)o->batch);
    }
    if (o->world < 1 || o->world > INT32_MAX || o->rank < 0 || o->rank >= o->world) {
        RP_FAIL(err, RP_E_ARG, "rank %lld of %lld", (long long)o->rank, (long long)o->world);
    }
    if (o->workers < 1 || o->worker < 0 || o->worker >= o->workers) {
        RP_FAIL(err, RP_E_ARG, "worker %lld of %lld", (long long)o->worker, (long long)o->workers);
    }
    if (o->part < 0) {
        RP_FAIL(err, RP_E_ARG, "part = %lld, a number of rows is >= 0", (long long)o->part);
    }
    if (o->start < 0) {
        RP_FAIL(err, RP_E_ARG, "start = %lld, a position is >= 0", (long long)o->start);
    }
    return RP_OK;
}

static rp_status add_set(rp_feed *feed, const struct rp_feed_set *from, struct rp_error *err)
{
    struct feed_set *set = &feed->set[feed->n_sets];
    RP_TRY(rp_order_new(from->runs, from->n_runs, &from->params, &set->order, err));
    feed->n_sets++;
    set->frames = rp_order_frames(set->order);
    set->lanes = from->params.lanes > 0 ? from->params.lanes : 1;
    set->first_row = from->first_row;
    feed->lanes += set->lanes;
    int64_t end;
    if (set->first_row < 0 || __builtin_add_overflow(set->first_row, set->frames, &end)) {
        RP_FAIL(err, RP_E_ARG, "first_row = %lld of data set %zu is no row",
                (long long)set->first_row, feed->n_sets - 1);
    }
    feed->rows_end = end > feed->rows_end ? end : feed->rows_end;
    if (feed->lanes > MOST_LANES) {
        RP_FAIL(err, RP_E_ARG, "the data sets have more than %d lanes together", MOST_LANES);
    }
    return RP_OK;
}

/* The next position goes to the set whose next sample is due first: (2 n + 1) / lanes, compared by
 * cross products; the first of equals. */
static rp_status make_pattern(rp_feed *feed, struct rp_error *err)
{
    feed->pattern = rp_calloc((size_t)feed->lanes, sizeof(*feed->pattern));
    feed->place = rp_calloc((size_t)feed->options.batch, sizeof(*feed->place));
    int64_t *n = rp_calloc(feed->n_sets, sizeof(*n));
    if (feed->pattern == NULL || feed->place == NULL || n == NULL) {
        rp_free(n);
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a mixture of %zu data sets", feed->n_sets);
    }
    for (int64_t i = 0; i < feed->lanes; i++) {
        size_t best = 0;
        for (size_t d = 1; d < feed->n_sets; d++) {
            if ((2 * n[d] + 1) * feed->set[best].lanes < (2 * n[best] + 1) * feed->set[d].lanes) {
                best = d;
            }
        }
        feed->pattern[i] = (struct share){(uint32_t)best, (uint32_t)n[best]++};
    }
    rp_free(n);
    return RP_OK;
}

/* Set, its epoch and the position in it that a position of the feed is. */
static rp_status locate(const rp_feed *feed, int64_t p, const struct feed_set **set, int64_t *epoch,
                        int64_t *position, struct rp_error *err)
{
    *set = feed->set;
    *epoch = feed->options.epoch;
    int64_t x = p;
    if (feed->n_sets > 1) {
        const struct share *share = &feed->pattern[p % feed->lanes];
        *set += share->set;
        *epoch = 0;
        x = p / feed->lanes * (*set)->lanes + share->before; /* <= p */
    }
    int64_t more = x / (*set)->frames;
    if (more > UINT32_MAX - *epoch) {
        RP_FAIL(err, RP_E_ARG, "position %lld lies beyond epoch 2^32-1", (long long)p);
    }
    *epoch += more;
    *position = x % (*set)->frames;
    return RP_OK;
}

/* RP_E_ARG unless the epochs of all positions before `end` are numbers of 32 bits. */
static rp_status check_epochs(const rp_feed *feed, int64_t end, struct rp_error *err)
{
    const struct feed_set *set = NULL;
    int64_t back = feed->n_sets > 1 ? feed->lanes : 1; /* each set's last sample is among these */
    for (int64_t p = end > back ? end - back : 0; p < end; p++) {
        int64_t epoch = 0, position = 0;
        RP_TRY(locate(feed, p, &set, &epoch, &position, err));
    }
    return RP_OK;
}

static rp_status fill(rp_feed *feed, const struct rp_feed_set *sets, size_t n_sets,
                      struct rp_error *err)
{
    feed->set = rp_calloc(n_sets, sizeof(*feed->set));
    if (feed->set == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu data sets", n_sets);
    }
    for (size_t d = 0; d < n_sets; d++) {
        RP_TRY(add_set(feed, &sets[d], err));
    }
    if (n_sets > 1) {
        RP_TRY(make_pattern(feed, err));
    }
    RP_TRY(check_epochs(feed, feed->options.start, err));
    return check_epochs(feed, feed->options.stop, err);
}

rp_status rp_feed_new(const struct rp_feed_set *sets, size_t n_sets,
                      const struct rp_feed_options *options, rp_feed **out, struct rp_error *err)
{
    RP_TRY(check_options(options, err));
    if (n_sets == 0) {
        RP_FAIL(err, RP_E_ARG, "a feed needs a data set");
    }
    if (n_sets > 1 && options->part > 0) { /* they would go back to epochs that are gone */
        RP_FAIL(err, RP_E_ARG, "parts of batches of several data sets");
    }
    rp_feed *feed = rp_calloc(1, sizeof(*feed));
    if (feed == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the order of batches");
    }
    feed->options = *options;
    feed->at = options->start;
    rp_status status = fill(feed, sets, n_sets, err);
    if (status != RP_OK) {
        rp_feed_free(&feed);
        return status;
    }
    *out = feed;
    return RP_OK;
}

rp_status rp_feed_new_rows(const int64_t *rows, int64_t count, int64_t batch, bool drop_last,
                           rp_feed **out, struct rp_error *err)
{
    struct rp_feed_options options = {
        .stop = count, .batch = batch, .world = 1, .workers = 1, .drop_last = drop_last};
    RP_TRY(check_options(&options, err));
    if (count < 0) {
        RP_FAIL(err, RP_E_ARG, "%lld rows", (long long)count);
    }
    int64_t end = 0;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] == INT64_MAX) {
            RP_FAIL(err, RP_E_ARG, "row %lld at place %lld is no row", (long long)rows[i],
                    (long long)i);
        }
        end = rows[i] >= end ? rows[i] + 1 : end;
    }
    rp_feed *feed = rp_calloc(1, sizeof(*feed));
    int64_t *given = rp_calloc((size_t)count, sizeof(*given));
    if (feed == NULL || given == NULL) {
        rp_free(feed);
        rp_free(given);
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld rows", (long long)count);
    }
    if (count > 0) {
        memcpy(given, rows, (size_t)count * sizeof(*given));
    }
    feed->options = options;
    feed->given = given;
    feed->rows_end = end;
    *out = feed;
    return RP_OK;
}

int64_t rp_feed_batch(const rp_feed *feed)
{
    const struct rp_feed_options *o = &feed->options;
    return o->part > 0 && o->part < o->batch ? o->part : o->batch;
}

int64_t rp_feed_rows_end(const rp_feed *feed)
{
    return feed->rows_end;
}

bool rp_feed_unit(const rp_feed *feed, int64_t row, int64_t *first, int64_t *end)
{
    for (size_t d = 0; d < feed->n_sets; d++) {
        const struct feed_set *set = &feed->set[d];
        if (row >= set->first_row && row - set->first_row < set->frames) {
            bool known = rp_order_unit(set->order, row - set->first_row, first, end);
            *first += known ? set->first_row : 0;
            *end += known ? set->first_row : 0;
            return known;
        }
    }
    return false;
}

/* Row of a position. */
static rp_status find_row(rp_feed *feed, int64_t p, int64_t *row, struct rp_error *err)
{
    const struct feed_set *set = NULL;
    int64_t epoch = 0, position = 0;
    RP_TRY(locate(feed, p, &set, &epoch, &position, err));
    RP_TRY(rp_order_row(set->order, (uint32_t)epoch, position, row, err));
    *row += set->first_row;
    return RP_OK;
}

/* Slots [from, to) of batch [p, q) over one set: epoch after epoch, so that none is begun twice. */
static rp_status rows_of_set(rp_feed *feed, int64_t p, int64_t q, int64_t from, int64_t to,
                             int64_t *rows, struct rp_error *err)
{
    int64_t frames = feed->set[0].frames, slot = 0;
    while (slot < to) {
        int64_t base = p - p % frames; /* where the epoch of p begins */
        int64_t n = q - p < base - p + frames ? q - p : base - p + frames;
        int64_t a = from > slot ? from - slot : 0, b = to - slot < n ? to - slot : n;
        if (a < b) {
            rp_order_slots(feed->lanes, p - base, p - base + n, a, b, rows);
        }
        for (; a < b; a++, rows++) {
            RP_TRY(find_row(feed, base + *rows, rows, err));
        }
        p += n;
        slot += n;
    }
    return RP_OK;
}

static int by_position(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* The same over several sets. A set's epoch may end inside the batch, on another lane than it
 * began: positions are asked for as they ascend, so that no epoch is gone back to. */
static rp_status rows_of_mixture(rp_feed *feed, int64_t p, int64_t q, int64_t from, int64_t to,
                                 int64_t *rows, struct rp_error *err)
{
    int64_t n = to - from;
    rp_order_slots(feed->lanes, p, q, from, to, rows);
    for (int64_t i = 0; i < n; i++) {
        feed->place[i] = (struct place){rows[i], i};
    }
    qsort(feed->place, (size_t)n, sizeof(*feed->place), by_position);
    for (int64_t i = 0; i < n; i++) {
        RP_TRY(find_row(feed, feed->place[i].position, &rows[feed->place[i].slot], err));
    }
    return RP_OK;
}

/* Whether more of the slots [from, *to) follows on the part that *to is moved to. */
static bool cut_part(const struct rp_feed_options *o, int64_t from, int64_t *to)
{
    if (o->part == 0 || *to - from <= o->part) {
        return false;
    }
    *to = from + o->part;
    return true;
}

rp_status rp_feed_next(rp_feed *feed, int64_t *rows, int64_t *n, int64_t *done, int64_t *repeated,
                       struct rp_error *err)
{
    const struct rp_feed_options *o = &feed->options;
    int64_t size = o->batch * o->world;
    int64_t others = (o->worker - feed->number % o->workers + o->workers) % o->workers;
    int64_t p = 0, q = 0;
    bool far = __builtin_mul_overflow(others, size, &p) || /* batches of other workers */
               __builtin_add_overflow(p, feed->at, &p);
    bool past = far || __builtin_add_overflow(p, size, &q);
    if (o->stop >= 0 && (past || q > o->stop)) {
        if (o->drop_last || far || p >= o->stop) {
            return RP_END;
        }
        q = o->stop;
    }
    else if (past) {
        RP_FAIL(err, RP_E_ARG, "the positions of the sample order are used up");
    }
    int64_t from, to;
    rp_order_share(q - p, o->rank, o->world, &from, &to);
    from += feed->given_rows;
    bool last = !cut_part(o, from, &to);
    if (feed->given != NULL) {
        memcpy(rows, feed->given + p, (size_t)(q - p) * sizeof(*rows));
    }
    else {
        RP_TRY(feed->n_sets > 1 ? rows_of_mixture(feed, p, q, from, to, rows, err)
                                : rows_of_set(feed, p, q, from, to, rows, err));
    }
    *n = to - from;
    *repeated = q - p < o->world ? o->world - (q - p) : 0;
    if (last) {
        feed->at = q;
        feed->number += others + 1;
        feed->given_rows = 0;
    }
    else {
        feed->given_rows += o->part;
    }
    *done = feed->at;
    return RP_OK;
}

void rp_feed_free(rp_feed **feed)
{
    if (feed == NULL || *feed == NULL) {
        return;
    }
    for (size_t d = 0; d < (*feed)->n_sets; d++) {
        rp_order_free(&(*feed)->set[d].order);
    }
    rp_free((*feed)->set);
    rp_free((*feed)->pattern);
    rp_free((*feed)->place);
    rp_free((*feed)->given);
    rp_free(*feed);
    *feed = NULL;
}
