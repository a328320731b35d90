/* What a process notes of its calls, and the words for it, also where a worker has written nonsense
 * (kernels/base/plugin_call.h). */
#include "kernels/base/plugin_call.h"
#include "test/workplace.h"

#include <check.h>
#include <string.h>

static const struct monotime begun = {5};

static void expect_name(const struct plugin_call *note, const char *wanted)
{
    char name[96];
    plugin_call_name(name, sizeof name, note);
    ck_assert_str_eq(name, wanted);
}

START_TEST(a_call_is_noted_where_another_process_looks)
{
    struct plugin_call note = {0};
    plugin_call_note_at(&note);
    plugin_call_begin(PLUGIN_CALL_STEP, 3, 3, begun);
    ck_assert_uint_eq(atomic_load(&note.begun_ns), 5);
    expect_name(&note, "step of environment 3");
    plugin_call_end();
    ck_assert_uint_eq(atomic_load(&note.begun_ns), 0);
    plugin_call_begin(PLUGIN_CALL_RESET, 4, 7, begun);
    expect_name(&note, "reset of environments 4 to 7");
    plugin_call_begin(PLUGIN_CALL_LOAD_FILE, 0, 0, begun);
    expect_name(&note, "dlopen or environment_plugin()");
}
END_TEST

START_TEST(no_note_is_trusted)
{
    struct plugin_call note;
    memset(&note, 'x', sizeof note);
    expect_name(&note, "dlopen or environment_plugin()");
    note.kind = PLUGIN_CALL_TEXT;
    char name[sizeof note.call + 1];
    plugin_call_name(name, sizeof name, &note);
    ck_assert_uint_eq(strlen(name), sizeof note.call - 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plugin_call");
    TCase *tcase = tcase_create("plugin_call");
    tcase_add_test(tcase, a_call_is_noted_where_another_process_looks);
    tcase_add_test(tcase, no_note_is_trusted);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
