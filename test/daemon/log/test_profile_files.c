/* The table and the trace of a run that was profiled (daemon/log/profile_files.h). */
#include "daemon/log/profile_files.h"
#include "test/workplace.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static struct profile_figures agent, observer;
static struct profile_row rows[3];

static void setup(void)
{
    memset(&agent, 0, sizeof agent);
    memset(&observer, 0, sizeof observer);
    agent.begin_ns = 2000000000;
    agent.end_ns = 6000000000;
    agent.cpu_ns = 6000000000;
    agent.ns[PROFILE_WAITING] = 3000000000;
    agent.ns[PROFILE_INFERENCE] = 1000000000;
    agent.kept = 2;
    agent.spans[0] = (struct profile_span){.begin_ns = 2500000000, .ns = 40000, .kind = PROFILE_WAITING};
    agent.spans[1] = (struct profile_span){.begin_ns = 2600000000, .ns = 12345, .kind = PROFILE_INFERENCE};
    observer = agent;
    observer.ns[PROFILE_INFERENCE] = 0;
    observer.ns[PROFILE_ENVIRONMENT] = 1500000000;
    observer.kept = 1;
    observer.ahead_ns = -1000000000;
    rows[0] = (struct profile_row){.name = "agent 0", .figures = &agent};
    rows[1] = (struct profile_row){.name = "observer 1", .figures = &observer, .note = "started 2 times"};
    rows[2] = (struct profile_row){.name = "observer 2 on host 1 (\"b\")", .note = "no figures: killed"};
}

static char *table(unsigned count)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(out);
    profile_write_table(out, rows, count);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

static cJSON *trace(unsigned count, uint64_t origin_ns)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(out);
    profile_write_trace(out, rows, count, (struct monotime){origin_ns});
    ck_assert_int_eq(fclose(out), 0);
    cJSON *document = cJSON_Parse(text);
    ck_assert_msg(document != NULL, "not JSON: %s", text);
    free(text);
    return document;
}

START_TEST(a_table_has_the_kinds_that_there_are_and_the_notes)
{
    char *text = table(3);
    ck_assert_str_eq(text,
                     "% of the time                seconds     cpu  environment  waiting  inference  other\n"
                     "agent 0                         4.00   150.0          0.0     75.0       25.0    0.0\n"
                     "observer 1                      4.00   150.0         33.3     66.7        0.0    0.0\n"
                     "observer 2 on host 1 (\"b\")         -\n"
                     "observer 1: started 2 times\n"
                     "observer 2 on host 1 (\"b\"): no figures: killed\n");
    free(text);
}
END_TEST

START_TEST(workers_that_did_nothing_have_no_shares)
{
    memset(&agent, 0, sizeof agent);
    char *text = table(1);
    ck_assert_str_eq(text, "% of the time   seconds     cpu  other\n"
                           "agent 0            0.00     0.0    0.0\n");
    free(text);
}
END_TEST

static const cJSON *find(const cJSON *events, const char *name, const char *phase, int pid)
{
    for (const cJSON *event = events->child; event != NULL; event = event->next)
        if (strcmp(cJSON_GetObjectItem(event, "name")->valuestring, name) == 0 &&
            strcmp(cJSON_GetObjectItem(event, "ph")->valuestring, phase) == 0 &&
            cJSON_GetObjectItem(event, "pid")->valueint == pid)
            return event;
    ck_abort_msg("no %s of process %d", name, pid);
    return NULL;
}

START_TEST(a_trace_has_a_process_for_each_worker_and_an_event_for_each_span)
{
    cJSON *document = trace(3, 2000000000);
    const cJSON *events = cJSON_GetObjectItem(document, "traceEvents");
    ck_assert_int_eq(cJSON_GetArraySize(events), 3 * 3 + 3);
    const cJSON *names = cJSON_GetObjectItem(find(events, "process_name", "M", 3), "args");
    ck_assert_str_eq(cJSON_GetObjectItem(names, "name")->valuestring, rows[2].name);
    const cJSON *span = find(events, "inference", "X", 1);
    ck_assert_double_eq_tol(cJSON_GetObjectItem(span, "ts")->valuedouble, 600000, 1e-6);
    ck_assert_double_eq_tol(cJSON_GetObjectItem(span, "dur")->valuedouble, 12.345, 1e-6);
    ck_assert_int_eq(cJSON_GetObjectItem(span, "tid")->valueint, 1);
    cJSON_Delete(document);
}
END_TEST

START_TEST(another_hosts_clock_is_corrected)
{
    cJSON *document = trace(2, 1000000000);
    const cJSON *span = find(cJSON_GetObjectItem(document, "traceEvents"), "waiting", "X", 2);
    ck_assert_double_eq_tol(cJSON_GetObjectItem(span, "ts")->valuedouble, 500000, 1e-6);
    cJSON_Delete(document);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profile_files");
    TCase *core = tcase_create("core");
    tcase_add_checked_fixture(core, setup, NULL);
    tcase_add_test(core, a_table_has_the_kinds_that_there_are_and_the_notes);
    tcase_add_test(core, workers_that_did_nothing_have_no_shares);
    tcase_add_test(core, a_trace_has_a_process_for_each_worker_and_an_event_for_each_span);
    tcase_add_test(core, another_hosts_clock_is_corrected);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
