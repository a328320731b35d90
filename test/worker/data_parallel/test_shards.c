/* How a model is cut among parameter servers: at entries, each with at least one, as near to equal as these
 * allow, without a hole or an overlap; the statistics with server 0. */
#include "test/kernels/tape/tape_fixture.h"
#include "test/workplace.h"
#include "worker/data_parallel/shards.h"
#include "worker/model/resnet.h"

#include <unistd.h>

static const struct init zero = {INIT_CONSTANT, 0};

/* The image is of float32, so the params' backend says so here; nothing computes. */
static void open_params(void)
{
    static struct backend_ops ops;
    ops = ref_ops;
    ops.dtype = DTYPE_F32;
    fixture_open_with(&ops);
}

static void add(const char *name, enum parameter_kind kind, uint32_t elements)
{
    struct parameter *parameter = NULL;
    CK_OK(params_add(fixture.params, name, kind, kind == PARAMETER_COUNTER ? SHAPE0() : SHAPE1(elements),
                     zero, &parameter, &fixture.error));
}

static void lay_out(void)
{
    CK_OK(params_lay_out(fixture.params, &fixture.error));
}

static struct shard shard(uint32_t server, uint32_t servers)
{
    struct shard shards[256];
    CK_OK(shards_of(shards, fixture.params, servers, &fixture.error));
    return shards[server];
}

static uint32_t trained_in(const struct shard *part)
{
    uint32_t count = 0;
    for (uint32_t i = part->entry_first; i < part->entry_end; i++)
        count += params_at(fixture.params, i)->kind == PARAMETER_TRAINED;
    return count;
}

/* All shards of that many servers, one behind the other. */
static void expect_cover(uint32_t servers)
{
    const size_t elements = params_elements(fixture.params), image = image_elements(fixture.params);
    uint32_t entry = 0;
    size_t at = 0;
    for (uint32_t server = 0; server < servers; server++) {
        const struct shard part = shard(server, servers);
        ck_assert_uint_eq(part.entry_first, entry);
        ck_assert_uint_eq(part.first, at);
        ck_assert_uint_ge(trained_in(&part), 1);
        ck_assert_uint_gt(part.end, part.first);
        for (uint32_t i = part.entry_first; i < part.entry_end; i++) {
            const struct parameter *parameter = params_at(fixture.params, i);
            if (parameter->kind == PARAMETER_TRAINED)
                ck_assert(parameter->offset >= part.first &&
                          parameter->offset + shape_elements(&parameter->tensor.shape) <= part.end);
        }
        ck_assert_uint_eq(part.statistics_first, server == 0 ? elements : image);
        ck_assert_uint_eq(part.statistics_end, image);
        entry = part.entry_end;
        at = part.end;
    }
    ck_assert_uint_eq(entry, params_count(fixture.params));
    ck_assert_uint_eq(at, elements);
}

START_TEST(a_resnet_is_covered_by_any_number)
{
    const struct resnet_config config = {.depth = 50, .channels = 3, .classes = 30, .width = 64};
    struct resnet *resnet = NULL;
    open_params();
    CK_OK(resnet_new(&resnet, &config, fixture.params, &fixture.error));
    lay_out();
    const size_t largest = (size_t)512 * 512 * 9;
    for (uint32_t servers = 1; servers <= 8; servers++) {
        expect_cover(servers);
        for (uint32_t server = 0; server < servers; server++) { // a cut is at most half an entry away
            const struct shard part = shard(server, servers);
            const size_t share = params_elements(fixture.params) / servers;
            ck_assert_uint_lt(part.end - part.first, share + largest + 16);
            ck_assert_uint_gt(part.end - part.first + largest + 16, share);
        }
    }
    expect_cover(161); // as many as there are trained entries
    resnet_free(resnet);
    fixture_close();
}
END_TEST

START_TEST(cuts_are_the_nearest)
{
    open_params();
    add("a", PARAMETER_TRAINED, 32);
    add("mean", PARAMETER_BUFFER, 3);
    add("b", PARAMETER_TRAINED, 30); // with a gap behind it
    add("tracked", PARAMETER_COUNTER, 1);
    add("c", PARAMETER_TRAINED, 16);
    add("d", PARAMETER_TRAINED, 48);
    lay_out();
    // Entries begin at 0, 32, 64, 80 and end at 128.
    struct shard part = shard(0, 2);
    ck_assert_uint_eq(part.end, 64);
    ck_assert_uint_eq(part.entry_end, 4);
    ck_assert_uint_eq(part.statistics_first, 128);
    ck_assert_uint_eq(part.statistics_end, 144);
    part = shard(1, 2);
    ck_assert_uint_eq(part.first, 64);
    ck_assert_uint_eq(part.end, 128);
    part = shard(1, 3); // thirds at 42.7 and 85.3
    ck_assert_uint_eq(part.first, 32);
    ck_assert_uint_eq(part.end, 80);
    expect_cover(1);
    expect_cover(2);
    expect_cover(3);
    expect_cover(4);
    fixture_close();
}
END_TEST

START_TEST(of_two_cuts_as_near_the_first_is_taken)
{
    open_params();
    add("a", PARAMETER_TRAINED, 32);
    add("b", PARAMETER_TRAINED, 64);
    add("c", PARAMETER_TRAINED, 32);
    lay_out();
    ck_assert_uint_eq(shard(0, 2).end, 32); // 96 is as far from 64
    expect_cover(2);
    fixture_close();
}
END_TEST

START_TEST(every_server_has_an_entry_however_uneven_they_are)
{
    open_params();
    if (_i == 0)
        add("giant", PARAMETER_TRAINED, 100000);
    add("a", PARAMETER_TRAINED, 1);
    add("b", PARAMETER_TRAINED, 1);
    if (_i == 1)
        add("giant", PARAMETER_TRAINED, 100000);
    add("c", PARAMETER_TRAINED, 1);
    if (_i == 2)
        add("giant", PARAMETER_TRAINED, 100000);
    lay_out();
    for (uint32_t servers = 1; servers <= 4; servers++)
        expect_cover(servers);
    fixture_close();
}
END_TEST

START_TEST(more_servers_than_entries_are_refused)
{
    struct shard parts[3];
    struct error error = {0};
    open_params();
    add("a", PARAMETER_TRAINED, 5);
    add("mean", PARAMETER_BUFFER, 5);
    add("b", PARAMETER_TRAINED, 5);
    lay_out();
    ck_assert_int_eq(shards_of(parts, fixture.params, 3, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "3 parameter servers cannot share 2 trained parameters") != NULL, "%s",
                  error.text);
    expect_cover(2);
    fixture_close();
}
END_TEST

START_TEST(an_image_is_whole_pages)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    open_params();
    add("a", PARAMETER_TRAINED, (uint32_t)page / 4 - 16);
    if (_i > 0)
        add("mean", PARAMETER_BUFFER, _i == 1 ? 16 : 17);
    lay_out();
    ck_assert_uint_eq(image_elements(fixture.params), page / 4 - 16 + 16 * (unsigned)_i);
    ck_assert_uint_eq(image_bytes(fixture.params), _i < 2 ? page : 2 * page);
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shards");
    TCase *cuts = tcase_create("cuts");
    tcase_add_test(cuts, a_resnet_is_covered_by_any_number);
    tcase_add_test(cuts, cuts_are_the_nearest);
    tcase_add_test(cuts, of_two_cuts_as_near_the_first_is_taken);
    tcase_add_loop_test(cuts, every_server_has_an_entry_however_uneven_they_are, 0, 3);
    tcase_add_test(cuts, more_servers_than_entries_are_refused);
    tcase_add_loop_test(cuts, an_image_is_whole_pages, 0, 3);
    suite_add_tcase(suite, cuts);
    return suite_run(suite);
}
