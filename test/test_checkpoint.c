/* Checkpoints there and back: bit for bit, from any number of servers to any other, in any layout; the files
 * are the same bytes whoever wrote them, and what a run is given to begin with need not be a checkpoint. */
#include "test/checkpoint_fixture.h"

#include "kernels/params_file.h"
#include "kernels/safetensors.h"

#include <unistd.h>

static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};
enum { FILES = 3 };

/* ---- helpers ---- */

struct contents {
    char *bytes[FILES];
    size_t size[FILES];
};

static struct contents contents_read(const char *checkpoint)
{
    struct contents contents;
    for (int i = 0; i < FILES; i++) {
        char path[256];
        struct stat stat_of;
        snprintf(path, sizeof path, "%s/%s", checkpoint_at(checkpoint), file_names[i]);
        ck_assert_msg(stat(path, &stat_of) == 0, "%s is missing", path);
        contents.size[i] = (size_t)stat_of.st_size;
        contents.bytes[i] = file_read(path);
    }
    return contents;
}

static void contents_free(struct contents *contents)
{
    for (int i = 0; i < FILES; i++)
        free(contents->bytes[i]);
}

static void expect_same_contents(const struct contents *a, const struct contents *b)
{
    for (int i = 0; i < FILES; i++) {
        ck_assert_msg(a->size[i] == b->size[i], "%s: %zu and %zu bytes", file_names[i], a->size[i],
                      b->size[i]);
        ck_assert_msg(memcmp(a->bytes[i], b->bytes[i], a->size[i]) == 0, "%s differs", file_names[i]);
    }
}

/* Loads with every one of `servers` into params full of something else. */
static void expect_loads(const char *path, uint64_t seed, uint32_t servers, bool blocked)
{
    for (uint32_t server = 0; server < servers; server++) {
        struct member member;
        member_open(&member, server, servers, blocked, true);
        member_write(&member, seed + 1);
        CK_OK(checkpoint_load(path, &member.part, &checkpoint_error));
        member_expect(&member, seed, seed);
        member_close(&member);
    }
}

/* ---- there and back ---- */

START_TEST(any_servers_write_the_same_files_and_any_read_them)
{
    struct contents first = {0};
    struct checkpoint_counters counters;
    for (uint32_t round = 0; round < 2 * SERVERS_MAX; round++) {
        const uint32_t servers = 1 + round / 2;
        const bool blocked = round % 2 == 1;
        CK_OK(checkpoint_prepare(7, 40, servers, blocked, true));
        CK_OK(checkpoint_publish(workplace.run_dir, 7, 3, &checkpoint_error));
        struct contents contents = contents_read("00000007");
        if (round == 0)
            first = contents_read("00000007");
        expect_same_contents(&contents, &first);
        contents_free(&contents);
        CK_OK(checkpoint_check(checkpoint_at("00000007"), &counters, &checkpoint_error));
        expect_counters(&counters, 7);
        for (uint32_t readers = 1; readers <= SERVERS_MAX; readers++)
            expect_loads(checkpoint_at("00000007"), 40, readers, !blocked);
    }
    contents_free(&first);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, checkpoint_open, checkpoint_close);
    tcase_add_test(files, any_servers_write_the_same_files_and_any_read_them);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
