/* What /metrics may say (daemon/watch/listener.h): addresses, tokens and the textfile's name, each with the
 * sentence and the key at fault. test/daemon/watch/test_http.sh tests what is served. */
#include "daemon/watch/listener.h"
#include "test/workplace.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct job job;
static struct error error;
static const char *pointer;

static void begin(void)
{
    workplace_open();
    memset(&job.metrics, 0, sizeof job.metrics);
}

static void listen_at(const char *text)
{
    job.metrics.has_listen = true;
    snprintf(job.metrics.listen, sizeof job.metrics.listen, "%s", text);
}

/* A token's file of these bytes. */
static void use_token(const void *bytes, size_t length, mode_t mode)
{
    job.metrics.has_token = true;
    snprintf(job.metrics.token, sizeof job.metrics.token, "%s/token", workplace.folder);
    const int fd = open(job.metrics.token, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, length), (ssize_t)length);
    ck_assert_int_eq(fchmod(fd, mode), 0);
    ck_assert_int_eq(close(fd), 0);
}

static void expect_good(void)
{
    const enum status status = listener_check(&job, &pointer, &error);
    ck_assert_msg(status == STATUS_OK, "%s: %s", pointer, error.text);
}

static void expect_bad(enum status wanted, const char *key, const char *sentence)
{
    const enum status status = listener_check(&job, &pointer, &error);
    ck_assert_int_eq(status, wanted);
    ck_assert_str_eq(pointer, key);
    ck_assert_msg(strstr(error.text, sentence) != NULL, "expected \"%s\", got \"%s\"", sentence, error.text);
}

/* ---- addresses ---- */

static const char none[] = "expected an IP address and a port", beyond[] = "others can reach",
                  too_long[] = "a socket's path may have at most 107 bytes, got 108";

/* No sentence: good. */
static const struct {
    const char *listen, *sentence;
    bool with_token;
} addresses[] = {
    {"127.0.0.1:9477", NULL, false},
    {"127.0.0.1:1", NULL, false},
    {"127.255.255.254:65535", NULL, false},
    {"[::1]:9477", NULL, false},
    {"/run/coalesced/page", NULL, false},
    {"./page", NULL, false},
    {"0.0.0.0:9477", NULL, true},
    {"[::]:9477", NULL, true},
    {"192.0.2.7:9477", NULL, true},
    {"[2001:db8::7]:9477", NULL, true},
    {"0.0.0.0:9477", beyond, false},
    {"[::]:9477", beyond, false},
    {"192.0.2.7:9477", beyond, false},
    {"[2001:db8::7]:9477", beyond, false},
    {"128.0.0.1:9477", beyond, false},
    {"", none, false},
    {":", none, false},
    {":9477", none, false},
    {"9477", none, false},
    {"127.0.0.1", none, false},
    {"127.0.0.1:", none, false},
    {"127.0.0.1:0", none, false},
    {"127.0.0.1:65536", none, false},
    {"127.0.0.1:099999", none, false},
    {"127.0.0.1:9477 ", none, false},
    {"127.0.0.1:+9477", none, false},
    {"127.0.0.1:-1", none, false},
    {"127.0.0.1:0x50", none, false},
    {"127.0.0.1:http", none, false},
    {"127.0.0.256:9477", none, false},
    {"localhost:9477", none, false},
    {"coalesced.example:9477", none, true},
    {"[::1]", none, false},
    {"[]:9477", none, false},
    {"[:9477", none, false},
    {"]:9477", none, false},
    {"[::1:9477", none, false},
    {"[::g]:9477", none, false},
    {"[1:2:3:4:5:6:7:8:9:10:11:12:13:14:15:16:17:18:19:20:21:22:23:24:25:26:27:28]:9477", none, false},
    {"/"
     "1234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123"
     "4567",
     too_long, false},
};

START_TEST(an_address_is_numbers_or_a_path)
{
    listen_at(addresses[_i].listen);
    if (addresses[_i].with_token)
        use_token("secret\n", 7, 0600);
    if (addresses[_i].sentence == NULL)
        expect_good();
    else
        expect_bad(STATUS_INVALID, "/metrics/listen", addresses[_i].sentence);
}
END_TEST

/* ---- tokens ---- */

static const char longest[] =
    "12345678901234567890123456789012345678901234567890123456789012345678901234567890"
    "12345678901234567890123456789012345678901234567890123456789012345678901234567890"
    "12345678901234567890123456789012345678901234567890123456789012345678901234567890"
    "12345678901234\n\n";
_Static_assert(sizeof longest - 1 == 256, "one byte more than a token's file may have");

static const char no_token[] = "expected a token of 1..254 printable ASCII characters without spaces";

static const struct {
    const char *bytes;
    size_t length;
    mode_t mode;
    const char *sentence;
} tokens[] = {
    {"secret\n", 7, 0600, NULL},
    {"secret", 6, 0400, NULL},
    {"secret\r\nmore\n", 13, 0600, NULL},
    {longest, 255, 0600, NULL},
    {longest, 256, 0600, no_token},
    {"", 0, 0600, no_token},
    {"\n", 1, 0600, no_token},
    {"\nsecret\n", 8, 0600, no_token},
    {"\0secret\n", 8, 0600, no_token},
    {"sec\0ret\n", 8, 0600, no_token},
    {" ", 1, 0600, no_token},
    {" secret\n", 8, 0600, no_token},
    {"sec ret\n", 8, 0600, no_token},
    {"sec\tret\n", 8, 0600, no_token},
    {"secr\303\251t\n", 8, 0600, no_token},
    {"secret\n", 7, 0640, "other users may read it: expected mode 0600"},
    {"secret\n", 7, 0604, "other users may read it: expected mode 0600"},
    {"secret\n", 7, 0620, "expected mode 0600"},
};

START_TEST(a_token_is_a_private_files_first_line)
{
    listen_at("127.0.0.1:9477");
    use_token(tokens[_i].bytes, tokens[_i].length, tokens[_i].mode);
    if (tokens[_i].sentence == NULL)
        expect_good();
    else
        expect_bad(STATUS_INVALID, "/metrics/token", tokens[_i].sentence);
}
END_TEST

START_TEST(a_token_that_is_not_there_is_named)
{
    listen_at("0.0.0.0:9477");
    use_token("secret\n", 7, 0600);
    ck_assert_int_eq(unlink(job.metrics.token), 0);
    expect_bad(STATUS_NOT_FOUND, "/metrics/token", job.metrics.token);
}
END_TEST

/* ---- the textfile ---- */

static const struct {
    const char *path;
    bool is_good;
} textfiles[] = {
    {"/var/lib/run.prom", true}, {"a.prom", true},  {"a.b.prom", true}, {".prom", false}, {"prom", false},
    {"a.prom.tmp", false},       {"a.PROM", false}, {"a.prom/", false}, {"", false},
};

START_TEST(a_textfile_ends_in_prom)
{
    job.metrics.has_textfile = true;
    snprintf(job.metrics.textfile, sizeof job.metrics.textfile, "%s", textfiles[_i].path);
    if (textfiles[_i].is_good)
        expect_good();
    else
        expect_bad(STATUS_INVALID, "/metrics/textfile", "expected a name that ends in .prom");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("listener");
    TCase *tcase = tcase_create("check");
    tcase_add_checked_fixture(tcase, begin, workplace_close);
    tcase_add_loop_test(tcase, an_address_is_numbers_or_a_path, 0, sizeof addresses / sizeof addresses[0]);
    tcase_add_loop_test(tcase, a_token_is_a_private_files_first_line, 0, sizeof tokens / sizeof tokens[0]);
    tcase_add_test(tcase, a_token_that_is_not_there_is_named);
    tcase_add_loop_test(tcase, a_textfile_ends_in_prom, 0, sizeof textfiles / sizeof textfiles[0]);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
