/* Versions of parameters, on the oracle: a version with readers does not change, whatever is written
 * meanwhile; slots are used again; bad numbers of slots are refused. */
#include "test/kernels/tape/tape_fixture.h"
#include "test/workplace.h"
#include "worker/autograd/dist_versions.h"

static struct parameter *weight, *bias, *mean;
static struct dist_versions *versions;

static void open_versions(uint32_t slots)
{
    const struct init zero = {INIT_CONSTANT, 0};
    fixture_open();
    weight = fixture_add("weight", SHAPE1(9));
    bias = fixture_add("bias", SHAPE1(1));
    CK_OK(params_add(fixture.params, "mean", PARAMETER_BUFFER, SHAPE1(1), zero, &mean, &fixture.error));
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    CK_OK(dist_versions_new(&versions, fixture.params, slots, &fixture.error));
    CK_OK(params_begin(fixture.params, 1, 0, params_count(fixture.params), &fixture.error));
}

static void close_versions(void)
{
    dist_versions_free(versions);
    fixture_close();
}

static void write_bias(double value)
{
    CK_OK(dist_versions_advance(versions, &fixture.error));
    fixture_write(bias, &value);
}

static void expect_bias(double expected)
{
    double got;
    CK_OK(params_read(fixture.params, bias, DTYPE_F64, &got, &fixture.error));
    ck_assert_msg(got == expected, "bias is %g, expected %g", got, expected);
}

START_TEST(a_reader_keeps_what_it_read)
{
    open_versions(3);
    write_bias(1);
    const uint32_t first = dist_versions_hold(versions);
    write_bias(2);
    expect_bias(2);
    const uint32_t second = dist_versions_hold(versions);
    ck_assert_uint_ne(first, second);
    write_bias(3);
    dist_versions_place(versions, first);
    expect_bias(1);
    dist_versions_place(versions, second);
    expect_bias(2);
    dist_versions_place_newest(versions);
    expect_bias(3);
    dist_versions_drop(versions, first);
    dist_versions_drop(versions, second);
    close_versions();
}
END_TEST

START_TEST(what_nobody_reads_is_written_in_place)
{
    open_versions(2);
    const void *before = params_slab(fixture.params)->data;
    write_bias(1);
    ck_assert_ptr_eq(params_slab(fixture.params)->data, before);
    const uint32_t held = dist_versions_hold(versions);
    write_bias(2);
    ck_assert_ptr_ne(params_slab(fixture.params)->data, before);
    dist_versions_drop(versions, held);
    write_bias(3);
    expect_bias(3);
    close_versions();
}
END_TEST

START_TEST(a_new_version_begins_with_all_values_of_the_last)
{
    const double buffer = 4;
    open_versions(2);
    fixture_write(weight, (double[]){1, 2, 3, 4, 5, 6, 7, 8, 9});
    fixture_write(mean, &buffer);
    const uint32_t held = dist_versions_hold(versions);
    write_bias(5);
    double got[9];
    CK_OK(params_read(fixture.params, weight, DTYPE_F64, got, &fixture.error));
    fixture_expect(got, (double[]){1, 2, 3, 4, 5, 6, 7, 8, 9}, 9, "weight");
    CK_OK(params_read(fixture.params, mean, DTYPE_F64, got, &fixture.error));
    ck_assert(got[0] == buffer);
    dist_versions_drop(versions, held);
    close_versions();
}
END_TEST

/* Two readers of different versions and the newest one fill three slots; and one more reader of the newest
 * leaves none for the next. */
START_TEST(when_all_slots_are_read_nothing_moves)
{
    struct error error = {0};
    uint32_t held[3];
    open_versions(3);
    ck_assert_uint_eq(dist_versions_slots(versions), 3);
    for (int i = 0; i < 3; i++) {
        held[i] = dist_versions_hold(versions);
        ck_assert(dist_versions_can_advance(versions) == (i < 2));
        if (i < 2)
            write_bias(i + 1);
    }
    ck_assert_int_eq(dist_versions_advance(versions, &error), STATUS_BUSY);
    ck_assert_ptr_nonnull(strstr(error.text, "all 3 versions"));
    expect_bias(2);
    dist_versions_drop(versions, held[1]);
    write_bias(7);
    expect_bias(7);
    dist_versions_place(versions, held[0]);
    expect_bias(0);
    dist_versions_drop(versions, held[0]);
    dist_versions_drop(versions, held[2]);
    close_versions();
}
END_TEST

START_TEST(too_few_slots_and_memory_elsewhere_are_refused)
{
    struct error error = {0};
    struct dist_versions *none;
    struct backend_ops far = ref_ops;
    far.host = false;
    fixture_open_with(&far);
    fixture_add("bias", SHAPE1(1));
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    ck_assert_int_eq(dist_versions_new(&none, fixture.params, 2, &error), STATUS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(error.text, "its memory is not the host's"));
    fixture_close();
    fixture_open();
    fixture_add("bias", SHAPE1(1));
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    ck_assert_int_eq(dist_versions_new(&none, fixture.params, 1, &error), STATUS_INVALID);
    ck_assert_int_eq(dist_versions_new(&none, fixture.params, DIST_VERSIONS_MAX + 1, &error), STATUS_INVALID);
    fixture_close();
    fixture_open();
    CK_OK(params_lay_out(fixture.params, &fixture.error));
    ck_assert_int_eq(dist_versions_new(&none, fixture.params, 2, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "no parameter"));
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dist_versions");
    TCase *all = tcase_create("versions");
    tcase_add_test(all, a_reader_keeps_what_it_read);
    tcase_add_test(all, what_nobody_reads_is_written_in_place);
    tcase_add_test(all, a_new_version_begins_with_all_values_of_the_last);
    tcase_add_test(all, when_all_slots_are_read_nothing_moves);
    tcase_add_test(all, too_few_slots_and_memory_elsewhere_are_refused);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
