/* The policy that a job's keys ask for. */
#include "test/worker/job/job_fixture.h"
#include "test/workplace.h"
#include "worker/reinforce/job_open.h"

#include <check.h>
#include <stdio.h>

static const uint32_t choices[] = {2};
static const struct environment_spec spec = {
    .agents = 1,
    .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {4}},
    .action = {.dtype = ENVIRONMENT_I32, .choices = choices}};

static bool shares(const char *algorithm, const char *network, const char *value_network)
{
    char text[256];
    snprintf(text, sizeof text,
             "{\"kind\": \"reinforce\", \"algorithm\": {\"name\": \"%s\"}, \"policy\": {\"network\": "
             "\"%s\"%s%s}%s}",
             algorithm, network,
             value_network == NULL ? "" : ", \"value_network\": ", value_network == NULL ? "" : value_network,
             algorithm[0] == 'r' ? ", \"stop\": {\"episodes\": 1}" : "");
    const struct job job = parse_job(text, NULL, 0);
    return policy_config_of(&job, &spec).shared_value;
}

START_TEST(the_value_shares_what_the_job_says_or_the_network_is_used_to)
{
    static const char *const algorithms[] = {"ppo", "a2c"};
    for (unsigned i = 0; i < 2; i++) {
        ck_assert(!shares(algorithms[i], "mlp", NULL) && !shares(algorithms[i], "mlp", "null"));
        ck_assert(shares(algorithms[i], "cnn", NULL) && shares(algorithms[i], "cnn", "null"));
        ck_assert(shares(algorithms[i], "mlp", "\"shared\"") && shares(algorithms[i], "cnn", "\"shared\""));
        ck_assert(!shares(algorithms[i], "mlp", "\"separate\"") &&
                  !shares(algorithms[i], "cnn", "\"separate\""));
    }
    ck_assert(!shares("reinforce", "mlp", NULL) && !shares("reinforce", "cnn", NULL));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_open");
    TCase *tests = tcase_create("job_open");
    tcase_add_test(tests, the_value_shares_what_the_job_says_or_the_network_is_used_to);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
