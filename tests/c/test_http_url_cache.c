/* Signed URLs that processes share: what is kept, what is a miss, and who may resolve. */
#include "harness.h"

#include "base/sha256.h"
#include "base/thread.h"
#include "fetch/http_url_cache_priv.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define URL    "https://hub/datasets/o/n/resolve/c/videos/a.mp4"
#define TARGET "https://cdn/blob?Expires=9&Signature=s"

static char dir[64], entry[160], lease_file[170];
static struct rp_http_known found;
static char target[RP_URL_MAX + 1];

/* A folder that is not there yet, two levels deep. */
static void begin(void)
{
    char top[] = "/tmp/rp-url-cache-XXXXXX";
    REQUIRE(mkdtemp(top) != NULL);
    snprintf(dir, sizeof(dir), "%s/a/url", top);
    struct rp_sha256 sum;
    uint8_t digest[RP_SHA256_BYTES];
    char hex[RP_SHA256_HEX];
    rp_sha256_begin(&sum);
    rp_sha256_add(&sum, URL, strlen(URL));
    rp_sha256_end(&sum, digest);
    rp_sha256_hex(digest, hex);
    snprintf(entry, sizeof(entry), "%s/%.2s/%s", dir, hex, hex);
    snprintf(lease_file, sizeof(lease_file), "%s.lease", entry);
}

static void end(void)
{
    char command[100];
    snprintf(command, sizeof(command), "rm -r %.*s", (int)strlen(dir) - 6, dir);
    CHECK_EQ(system(command), 0);
}

static struct rp_http_known facts(void)
{
    struct rp_http_known known = {.secrets = true,
                                  .linked = true,
                                  .size = 12345,
                                  .etag = "e1",
                                  .last_modified = "Tue, 14 Jul 2026 10:15:00 GMT",
                                  .target_etag = "t1",
                                  .fresh_ns = rp_now_ns() + INT64_C(60000000000),
                                  .link = {"c1", "x1", "l1", 12345}};
    return known;
}

static void keep(void)
{
    struct rp_http_known known = facts();
    REQUIRE_EQ(rp_url_cache_store(dir, URL, &known, TARGET), RP_OK);
}

static rp_status load(void)
{
    return rp_url_cache_load(dir, URL, &found, target);
}

static int mode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int)(st.st_mode & 07777) : -1;
}

static int files_in(const char *path)
{
    DIR *list = opendir(path);
    int n = 0;
    for (struct dirent *item = list != NULL ? readdir(list) : NULL; item != NULL;
         item = readdir(list)) {
        n += item->d_name[0] != '.';
    }
    if (list != NULL) {
        closedir(list);
    }
    return n;
}

RP_TEST(what_is_kept_comes_back)
{
    begin();
    CHECK_EQ(load(), RP_AGAIN);
    keep();
    keep();
    REQUIRE_EQ(load(), RP_OK);
    CHECK_STR(target, TARGET);
    CHECK(found.secrets && found.linked && found.target == NULL);
    CHECK_EQ(found.size, 12345);
    CHECK_STR(found.etag, "e1");
    CHECK_STR(found.last_modified, "Tue, 14 Jul 2026 10:15:00 GMT");
    CHECK_STR(found.target_etag, "t1");
    CHECK_STR(found.link.repo_commit, "c1");
    CHECK_STR(found.link.xet_hash, "x1");
    CHECK_STR(found.link.linked_etag, "l1");
    CHECK_EQ(found.link.linked_size, 12345);
    int64_t left = (found.fresh_ns - rp_now_ns()) / 1000000;
    CHECK(left > 30000 && left <= 60000);
    CHECK_EQ(rp_url_cache_load(dir, URL "x", &found, target), RP_AGAIN);
    CHECK_EQ(mode_of(dir), 0700);
    CHECK_EQ(mode_of(entry), 0600);
    char folder[100];
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(entry, '/') - entry), entry);
    CHECK_EQ(mode_of(folder), 0700);
    CHECK_EQ(files_in(folder), 1);
    end();
}

RP_TEST(what_ran_out_is_a_miss)
{
    begin();
    struct rp_http_known known = facts();
    known.fresh_ns = rp_now_ns() + 30000000;
    REQUIRE_EQ(rp_url_cache_store(dir, URL, &known, TARGET), RP_OK);
    usleep(60000);
    CHECK_EQ(load(), RP_AGAIN);
    CHECK_EQ(rp_url_cache_store(dir, URL, &known, TARGET), RP_OK); /* nothing to keep */
    known.fresh_ns = rp_now_ns() + INT64_C(30) * 86400 * 1000000000;
    REQUIRE_EQ(rp_url_cache_store(dir, URL, &known, TARGET), RP_OK);
    CHECK_EQ(load(), RP_AGAIN); /* longer than anything lives: a clock went astray */
    end();
}

RP_TEST(any_damage_is_a_miss)
{
    begin();
    keep();
    size_t len = 0;
    uint8_t *bytes = rp_read_file(entry, &len);
    REQUIRE(bytes != NULL && len > 100);
    for (size_t i = 0; i < len; i++) {
        int fd = open(entry, O_WRONLY | O_CLOEXEC);
        uint8_t wrong = bytes[i] ^ (uint8_t)(1 << i % 8);
        CHECK(pwrite(fd, &wrong, 1, (off_t)i) == 1);
        if (load() == RP_OK) {
            rp_fail_at(__FILE__, __LINE__, "byte %zu of %zu: taken", i, len);
        }
        CHECK(pwrite(fd, &bytes[i], 1, (off_t)i) == 1);
        close(fd);
    }
    CHECK_EQ(load(), RP_OK);
    for (size_t n = 0; n < len; n++) {
        CHECK_EQ(truncate(entry, (off_t)n), 0);
        if (load() == RP_OK) {
            rp_fail_at(__FILE__, __LINE__, "%zu of %zu bytes: taken", n, len);
        }
    }
    free(bytes);
    keep();
    CHECK_EQ(load(), RP_OK);
    end();
}

RP_TEST(an_entry_under_another_name_is_a_miss)
{
    begin();
    keep();
    struct rp_http_known known = facts();
    REQUIRE_EQ(rp_url_cache_store(dir, URL "2", &known, TARGET "2"), RP_OK);
    char command[400];
    snprintf(command, sizeof(command), "for f in %s/*/*; do cp %s $f 2>/dev/null; done; true", dir,
             entry);
    CHECK_EQ(system(command), 0);
    CHECK(rp_url_cache_load(dir, URL "2", &found, target) != RP_OK);
    CHECK_EQ(load(), RP_OK);
    end();
}

RP_TEST(what_others_may_write_is_refused)
{
    begin();
    keep();
    struct rp_http_known known = facts();
    struct rp_url_lease lease = {false, 0, 0};
    CHECK_EQ(chmod(entry, 0620), 0);
    CHECK_EQ(load(), RP_E_IO);
    CHECK_EQ(chmod(entry, 0600), 0);
    CHECK_EQ(load(), RP_OK);
    CHECK_EQ(chmod(dir, 0777), 0);
    CHECK_EQ(load(), RP_E_IO);
    CHECK_EQ(rp_url_cache_store(dir, URL, &known, TARGET), RP_E_IO);
    CHECK_EQ(rp_url_lease_take(dir, URL, &lease), RP_E_IO);
    CHECK(!lease.held);
    CHECK_EQ(chmod(dir, 0700), 0);
    char other[200];
    snprintf(other, sizeof(other), "%s-link", dir);
    CHECK_EQ(symlink(dir, other), 0);
    CHECK_EQ(rp_url_cache_load(other, URL, &found, target), RP_E_IO);
    snprintf(other, sizeof(other), "%s.real", entry);
    CHECK_EQ(rename(entry, other), 0);
    CHECK_EQ(symlink(other, entry), 0);
    CHECK_EQ(load(), RP_E_IO);
    CHECK_EQ(rp_url_cache_store("/dev/null/x", URL, &known, TARGET), RP_E_IO);
    if (geteuid() == 0) { /* another owner */
        CHECK_EQ(unlink(entry), 0);
        CHECK_EQ(rename(other, entry), 0);
        CHECK_EQ(load(), RP_OK);
        CHECK_EQ(chown(entry, 1234, 1234), 0);
        CHECK_EQ(load(), RP_E_IO);
    }
    end();
}

RP_TEST(a_refused_target_is_dropped)
{
    begin();
    keep();
    rp_url_cache_drop(dir, URL, TARGET "older");
    CHECK_EQ(load(), RP_OK);
    rp_url_cache_drop(dir, URL, TARGET);
    CHECK_EQ(load(), RP_AGAIN);
    rp_url_cache_drop(dir, URL, TARGET);
    end();
}

RP_TEST(one_lease_at_a_time)
{
    begin();
    struct rp_url_lease a = {false, 0, 0}, b = {false, 0, 0};
    REQUIRE_EQ(rp_url_lease_take(dir, URL, &a), RP_OK);
    CHECK_EQ(mode_of(lease_file), 0600);
    CHECK_EQ(rp_url_lease_take(dir, URL, &b), RP_AGAIN);
    CHECK_EQ(rp_url_lease_take(dir, URL "2", &b), RP_OK);
    rp_url_lease_release(dir, URL "2", &b);
    CHECK(a.held && !b.held);
    rp_url_lease_release(dir, URL, &b); /* not its own */
    CHECK_EQ(rp_url_lease_take(dir, URL, &b), RP_AGAIN);
    rp_url_lease_release(dir, URL, &a);
    REQUIRE_EQ(rp_url_lease_take(dir, URL, &b), RP_OK);
    a = (struct rp_url_lease){true, b.device, b.inode + 1}; /* lost to b since */
    rp_url_lease_release(dir, URL, &a);
    CHECK_EQ(rp_url_lease_take(dir, URL, &a), RP_AGAIN);
    rp_url_lease_release(dir, URL, &b);
    end();
}

RP_TEST(a_lease_ends_with_its_process_or_its_time)
{
    begin();
    struct rp_url_lease lease = {false, 0, 0};
    pid_t child = fork();
    if (child == 0) {
        _exit(rp_url_lease_take(dir, URL, &lease) == RP_OK ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE_EQ(rp_url_lease_take(dir, URL, &lease), RP_OK); /* it is dead */
    CHECK_EQ(rp_url_lease_take(dir, URL, &lease), RP_AGAIN);
    struct timespec old[2] = {{.tv_sec = time(NULL) - 31}, {.tv_sec = time(NULL) - 31}};
    CHECK_EQ(utimensat(AT_FDCWD, lease_file, old, 0), 0);
    CHECK_EQ(rp_url_lease_take(dir, URL, &lease), RP_OK);
    FILE *file = fopen(lease_file, "w"); /* of another host: only time can tell */
    REQUIRE(file != NULL);
    fprintf(file, "%d elsewhere", (int)child);
    fclose(file);
    CHECK_EQ(rp_url_lease_take(dir, URL, &lease), RP_AGAIN);
    rp_url_lease_release(dir, URL, &lease);
    end();
}

RP_TEST(what_nobody_renews_is_removed)
{
    begin();
    keep();
    char old[200];
    snprintf(old, sizeof(old), "%s.77.dead", entry); /* of a process that died while writing */
    int fd = open(old, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    struct timespec when[2] = {{.tv_sec = time(NULL) - 9 * 86400},
                               {.tv_sec = time(NULL) - 9 * 86400}};
    CHECK_EQ(futimens(fd, when), 0);
    close(fd);
    for (int i = 0; i < 5000 && access(old, F_OK) == 0; i++) {
        keep();
    }
    CHECK(access(old, F_OK) != 0);
    CHECK_EQ(load(), RP_OK);
    end();
}

static void use_without_memory(void *arg)
{
    (void)arg; /* nothing is shared */
    struct rp_http_known known = facts();
    rp_status status = rp_url_cache_store(dir, URL, &known, TARGET);
    CHECK(status == RP_OK || status == RP_E_NOMEM);
    status = load();
    CHECK(status == RP_OK || status == RP_E_NOMEM);
}

RP_TEST(memory_runs_out)
{
    begin();
    keep();
    CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, use_without_memory, NULL) >
          2);
    end();
}
