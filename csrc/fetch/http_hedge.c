/* One exchange, and at times a second one of the same bytes on a fresh connection: the first that
 * is whole wins. Both write the same bytes of the same version to the same place. */
#include "fetch/http_call_priv.h"

#include "base/counters.h"
#include "base/thread.h"

#define LARGEST (8 << 20) /* bytes: more are slow for good reasons */
#define TURN_MS 5         /* between looks at two exchanges */

static struct rp_http_reply *reply_of(const struct rp_http_seat *seat)
{
    return rp_http_transport_reply(seat->transport);
}

static bool is_won(const struct rp_http_reply *reply)
{
    return reply->end == RP_HTTP_COMPLETE && reply->head.complete && reply->row == RP_ROW_GOOD;
}

/* Count what an exchange cost and give its connection back. */
void rp_http_leave(struct rp_http_call *call, struct rp_http_seat *seat)
{
    struct rp_http_stats *stats = rp_http_client_stats(call->client);
    rp_count(&stats->requests, 1);
    rp_count(&stats->connections, reply_of(seat)->connections);
    rp_http_transport_finish(seat->transport);
    rp_http_client_give(call->client, seat, call->origin);
}

/* Move an exchange on and look at what has come. */
static rp_status move(struct rp_http_call *call, struct rp_http_seat *seat, int wait_ms)
{
    struct rp_http_reply *reply = reply_of(seat);
    rp_http_transport_step(seat->transport, wait_ms);
    if (call->got + reply->bytes > call->best) {
        call->best = call->got + reply->bytes;
        call->last_new_ns = rp_now_ns();
    }
    bool wanted = reply->row == RP_ROW_GOOD || reply->row == RP_ROW_SHORT;
    if (reply->head.complete && wanted && !call->settled) {
        return rp_http_settle(call, &reply->head);
    }
    return RP_OK;
}

/* Whether a second exchange may begin now. */
static bool is_due(struct rp_http_call *call, const struct rp_http_request *request)
{
    bool fit = call->to != NULL && request->first >= 0 && request->room <= LARGEST;
    bool resolving = call->resolver && !call->settled;
    if (!fit || resolving || call->hedged || call->timing->hedge == 0) {
        return false;
    }
    int64_t waited = rp_now_ns() - call->asked_ns;
    if (waited < call->timing->hedge * RP_MS) {
        return false;
    }
    enum rp_http_hold hold;
    int64_t until;
    call->hedged = rp_http_client_may_hedge(call->client, call->origin, waited) &&
                   rp_http_client_admit(call->client, call->origin, &hold, &until, NULL) == RP_OK &&
                   hold == RP_HTTP_GO;
    return call->hedged;
}

/* Begin the second exchange; without memory for it there is none. */
static struct rp_http_seat *hedge(struct rp_http_call *call, const struct rp_http_request *request)
{
    struct rp_http_request again = *request;
    struct rp_http_seat *seat;
    again.fresh = true;
    if (rp_http_client_take(call->client, call->origin, &seat, NULL) != RP_OK) {
        return NULL;
    }
    if (rp_http_transport_begin(seat->transport, &again, NULL) != RP_OK) {
        rp_http_client_give(call->client, seat, call->origin);
        return NULL;
    }
    call->requests++;
    rp_count(&rp_http_client_stats(call->client)->hedges, 1);
    return seat;
}

/* Keep the better of two exchanges in *first once that is clear; the other one is left. */
static void choose(struct rp_http_call *call, struct rp_http_seat **first,
                   struct rp_http_seat **second)
{
    const struct rp_http_reply *a = reply_of(*first), *b = reply_of(*second);
    bool a_failed = a->end != RP_HTTP_UNDER_WAY && !is_won(a);
    bool b_failed = b->end != RP_HTTP_UNDER_WAY && !is_won(b);
    if (!is_won(a) && (is_won(b) || (a_failed && !b_failed))) {
        struct rp_http_seat *better = *second;
        *second = *first;
        *first = better;
    }
    else if (!is_won(a) && !b_failed) {
        return;
    }
    rp_http_leave(call, *second);
    *second = NULL;
}

/* Move both on for a turn; *second is NULL once it is clear which to go by. */
static rp_status turn(struct rp_http_call *call, struct rp_http_seat **first,
                      struct rp_http_seat **second)
{
    RP_TRY(move(call, *first, *second != NULL ? TURN_MS : RP_HTTP_SLICE_MS));
    if (*second != NULL) {
        RP_TRY(move(call, *second, TURN_MS));
        choose(call, first, second);
    }
    return reply_of(*first)->end == RP_HTTP_UNDER_WAY ? rp_http_call_check(call) : RP_OK;
}

rp_status rp_http_transfer(struct rp_http_call *call, const struct rp_http_request *request,
                           struct rp_http_seat **seat)
{
    struct rp_http_seat *second = NULL;
    rp_status status = RP_OK;
    call->asked_ns = rp_now_ns();
    call->hedged = false;
    while (status == RP_OK && reply_of(*seat)->end == RP_HTTP_UNDER_WAY) {
        status = turn(call, seat, &second);
        bool late = reply_of(*seat)->end == RP_HTTP_UNDER_WAY && is_due(call, request);
        if (status == RP_OK && second == NULL && late) {
            second = hedge(call, request);
        }
    }
    if (second != NULL) {
        rp_http_leave(call, second);
    }
    bool ranged = call->to != NULL && request->room <= LARGEST;
    if (status == RP_OK && ranged && is_won(reply_of(*seat))) {
        rp_http_client_record(call->client, call->origin, rp_now_ns() - call->asked_ns);
    }
    return status;
}
