/* The one table of a job file's keys; see the header. The table's order is the order in which a job is
 * written, and its descriptions are what an editor shows that knows the schema. */
#include "worker/job/job_table.h"

#include "worker/env/environment.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED_MAX 9007199254740991.0 /* 2^53 - 1: the largest integer that every JSON reader keeps */

/* clang-format off */
#define AT(member) .offset = offsetof(struct job, member), .bytes = sizeof(((struct job *)0)->member)
#define RANGE(low, high) .min = (low), .max = (high)
#define BY_DEFAULT(value) .default_number = (value)
#define NULLABLE(member) .nullable = true, .offset_present = offsetof(struct job, member)
/* clang-format on */

static const char *const kind_names[] = {[JOB_REINFORCE] = "reinforce", NULL};
static const char *const device_names[] = {
    [JOB_DEVICE_AUTO] = "auto", [JOB_DEVICE_CPU] = "cpu", [JOB_DEVICE_GPU] = "gpu", NULL};
static const char *const rollout_names[] = {
    [JOB_ROLLOUT_STEPS] = "steps", [JOB_ROLLOUT_EPISODE] = "episode", NULL};
static const char *const coalesce_names[] = {
    [JOB_COALESCE_OFF] = "off", [JOB_COALESCE_BARRIER] = "barrier", [JOB_COALESCE_DYNAMIC] = "dynamic", NULL};
static const char *const reduction_names[] = {
    [JOB_REDUCTION_SUM] = "sum", [JOB_REDUCTION_MEAN_OVER_ENVIRONMENTS] = "mean_over_environments", NULL};
static const char *const optimizer_names[] = {"adam", NULL};
static const char *const of_names[] = {[JOB_OF_MIN] = "min", [JOB_OF_MEAN] = "mean", NULL};

/* A stop without either limit would be none. The table says what each key may be; this says it of both. */
static const char stop_rule[] = "\"if\": {\"properties\": {\"episodes\": {\"type\": \"null\"}}, "
                                "\"required\": [\"episodes\"]},\n      "
                                "\"then\": {\"properties\": {\"running_reward\": {\"type\": \"number\"}}, "
                                "\"required\": [\"running_reward\"]}";

const struct job_key job_keys[] = {
    {"/kind", JOB_ENUM, AT(kind), .names = kind_names, .required = true,
     .description =
         "what the job does; reinforce: one agent learns a policy from the episodes of its observers"},
    {"/name", JOB_NAME, AT(name),
     .description = "names the run directory; by default the file's own name without its ending"},
    {"/seed", JOB_INTEGER, AT(seed), RANGE(0, SEED_MAX), BY_DEFAULT(543),
     .description = "every random draw follows from it: the same seed gives the same log"},
    {"/device", JOB_ENUM, AT(device), .names = device_names, BY_DEFAULT(JOB_DEVICE_AUTO),
     .description = "where the policy is computed; auto: on a GPU if one works, else on the CPU"},

    {"/observers", JOB_OBJECT, .description = "the processes that step environments"},
    {"/observers/count", JOB_INTEGER, AT(observers.count), RANGE(1, 1024), BY_DEFAULT(1),
     .description = "observer processes"},
    {"/observers/environments", JOB_INTEGER, AT(observers.environments), RANGE(1, JOB_ENVIRONMENTS_MAX),
     BY_DEFAULT(1), .description = "environments in each observer; at most 16384 in all of them together"},

    {"/environment", JOB_OBJECT, .description = "the world that is learned"},
    {"/environment/name", JOB_ENVIRONMENT, AT(environment.name), .names = environment_names, BY_DEFAULT(0),
     .description = "as in Gymnasium's registry"},

    {"/rollout", JOB_OBJECT, .description = "what is played between two updates of the policy"},
    {"/rollout/mode", JOB_ENUM, AT(rollout.mode), .names = rollout_names, BY_DEFAULT(JOB_ROLLOUT_STEPS),
     .description = "steps: so many steps, beginning anew when an episode ends; episode: one whole episode"},
    {"/rollout/steps", JOB_INTEGER, AT(rollout.steps), RANGE(1, 100000), BY_DEFAULT(500),
     .description = "steps of each environment; binds the mode steps only"},

    {"/coalesce", JOB_OBJECT, .description = "how requests for actions become launches"},
    {"/coalesce/mode", JOB_ENUM, AT(coalesce.mode), .names = coalesce_names, BY_DEFAULT(JOB_COALESCE_BARRIER),
     .description =
         "off: a launch per request; barrier: when every living environment has asked; dynamic: at "
         "max_batch rows or after max_delay_us"},
    {"/coalesce/max_batch", JOB_INTEGER, AT(coalesce.max_batch), RANGE(1, JOB_ENVIRONMENTS_MAX),
     BY_DEFAULT(64), .description = "rows at which a batch is launched; binds the mode dynamic only"},
    {"/coalesce/max_delay_us", JOB_INTEGER, AT(coalesce.max_delay_us), RANGE(0, 1000000), BY_DEFAULT(0),
     .description = "microseconds that the oldest row may wait, 0 takes what is there; binds dynamic only"},

    {"/policy", JOB_OBJECT, .description = "the network: affine, dropout, ReLU, affine, softmax"},
    {"/policy/hidden", JOB_INTEGER, AT(policy.hidden), RANGE(1, 1024), BY_DEFAULT(128), .list_of_one = true,
     .description = "widths of the hidden layers, of which there is one"},
    {"/policy/dropout", JOB_NUMBER, AT(policy.dropout), RANGE(0, 1), .max_open = true, BY_DEFAULT(0.6),
     .description = "probability with which a hidden unit is dropped"},

    {"/returns", JOB_OBJECT, .description = "what an action was worth"},
    {"/returns/gamma", JOB_NUMBER, AT(returns.gamma), RANGE(0, 1), BY_DEFAULT(1),
     .description = "discount of a reward per step of waiting for it"},
    {"/returns/normalize", JOB_BOOLEAN, AT(returns.normalize), BY_DEFAULT(0),
     .description = "bring each environment's returns to mean 0 and standard deviation 1"},

    {"/loss", JOB_OBJECT, .description = "what is minimized"},
    {"/loss/reduction", JOB_ENUM, AT(loss.reduction), .names = reduction_names, BY_DEFAULT(JOB_REDUCTION_SUM),
     .description =
         "the sum of -log probability * return over all rows, or that divided by the environments"},

    {"/optimizer", JOB_OBJECT, .description = "how a gradient moves the parameters"},
    {"/optimizer/name", JOB_CHOICE, AT(optimizer.name), .names = optimizer_names, BY_DEFAULT(0),
     .description = "the method"},
    {"/optimizer/lr", JOB_NUMBER, AT(optimizer.lr), RANGE(0, 10), .min_open = true, BY_DEFAULT(0.01),
     .description = "learning rate"},
    {"/optimizer/beta1", JOB_NUMBER, AT(optimizer.beta1), RANGE(0, 1), .max_open = true, BY_DEFAULT(0.9),
     .description = "decay of the gradient's running mean"},
    {"/optimizer/beta2", JOB_NUMBER, AT(optimizer.beta2), RANGE(0, 1), .max_open = true, BY_DEFAULT(0.999),
     .description = "decay of the squared gradient's running mean"},
    {"/optimizer/epsilon", JOB_NUMBER, AT(optimizer.epsilon), RANGE(0, 1), .min_open = true, BY_DEFAULT(1e-8),
     .description = "added to the root of that mean"},

    {"/running_reward", JOB_OBJECT, .description = "the smoothed reward: weight * new + (1 - weight) * old"},
    {"/running_reward/of", JOB_ENUM, AT(running_reward.of), .names = of_names, BY_DEFAULT(JOB_OF_MEAN),
     .description = "what of the environments' rewards is new: their smallest or their mean"},
    {"/running_reward/weight", JOB_NUMBER, AT(running_reward.weight), RANGE(0, 1), .min_open = true,
     BY_DEFAULT(0.5), .description = "weight of the new value"},

    {"/stop", JOB_OBJECT, .schema_rule = stop_rule,
     .description = "when the job ends: at the first limit that is reached; one of them must be set"},
    {"/stop/episodes", JOB_INTEGER, AT(stop.episodes), RANGE(1, 1e9), NULLABLE(stop.has_episodes),
     BY_DEFAULT(10), .description = "after so many episodes"},
    {"/stop/running_reward", JOB_NUMBER, AT(stop.running_reward), RANGE(-DBL_MAX, DBL_MAX),
     NULLABLE(stop.has_running_reward), .null_by_default = true,
     .description = "when the running reward is above it"},

    {"/log", JOB_OBJECT, .description = "what is written"},
    {"/log/every", JOB_INTEGER, AT(log.every), RANGE(1, 1e6), BY_DEFAULT(1),
     .description = "episodes from line to line of episodes.log; episodes.jsonl has every one"},

    {"/supervise", JOB_OBJECT, .description = "how the worker processes are watched"},
    {"/supervise/hang_s", JOB_NUMBER, AT(supervise.hang_s), RANGE(1, 3600), BY_DEFAULT(10),
     .description = "seconds without a sign of life after which a worker is killed"},
};
const size_t job_key_count = sizeof job_keys / sizeof job_keys[0];
_Static_assert(sizeof job_keys / sizeof job_keys[0] <= JOB_KEYS_MAX, "JOB_KEYS_MAX bounds arrays elsewhere");

const char *job_key_name(const struct job_key *key)
{
    return strrchr(key->pointer, '/') + 1;
}

const struct job_key *job_key_parent(const struct job_key *key)
{
    size_t length = (size_t)(job_key_name(key) - key->pointer) - 1;
    for (size_t i = 0; length > 0 && i < job_key_count; i++)
        if (strlen(job_keys[i].pointer) == length && memcmp(job_keys[i].pointer, key->pointer, length) == 0)
            return &job_keys[i];
    return NULL;
}

const struct job_key *job_key_member(const struct job_key *parent, const char *name)
{
    for (size_t i = 0; i < job_key_count; i++)
        if (strcmp(job_key_name(&job_keys[i]), name) == 0 && job_key_parent(&job_keys[i]) == parent)
            return &job_keys[i];
    return NULL;
}

bool job_key_ignored(const char *name)
{
    return name[0] == '_' || strcmp(name, "$schema") == 0;
}

bool job_key_planned(const char *pointer)
{
    static const char *const planned[] = {"/transport",    "/checkpoint", "/agent",  "/observers/groups",
                                          "/model",        "/trainers",   "/server", "/data",
                                          "/stop/updates", "/stop/epochs"};
    for (size_t i = 0; i < sizeof planned / sizeof planned[0]; i++)
        if (strcmp(planned[i], pointer) == 0)
            return true;
    return false;
}

bool job_kind_planned(const char *name)
{
    return strcmp(name, "parameter-server") == 0 || strcmp(name, "model-parallel") == 0;
}

bool job_name_valid(const char *name)
{
    size_t length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return length > 0 && length < JOB_NAME_BYTES && name[length] == '\0' && name[0] != '.' && name[0] != '-';
}

void job_number_show(char text[32], double value)
{
    for (int digits = fabs(value) < 1e15 && value == floor(value) ? 15 : 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

/* ---- what a value must be, in words ---- */

static void expect_names(char *text, size_t size, const struct job_key *key)
{
    int length = snprintf(text, size, key->names[1] == NULL ? "" : "one of ");
    for (size_t i = 0; key->names[i] != NULL; i++)
        length +=
            snprintf(text + length, size - (size_t)length, "%s\"%s\"", i == 0 ? "" : ", ", key->names[i]);
}

static void expect_number(char *text, size_t size, const struct job_key *key)
{
    char min[32], max[32];
    job_number_show(min, key->min);
    job_number_show(max, key->max);
    if (key->type == JOB_INTEGER)
        snprintf(text, size, "an integer in %s..%s", min, max);
    else if (key->max == DBL_MAX)
        snprintf(text, size, "a number");
    else
        snprintf(text, size, "a number in %c%s, %s%c", key->min_open ? '(' : '[', min, max,
                 key->max_open ? ')' : ']');
}

static void expect_value(char *text, size_t size, const struct job_key *key)
{
    switch (key->type) {
    case JOB_OBJECT:
        snprintf(text, size, "an object");
        break;
    case JOB_INTEGER:
    case JOB_NUMBER:
        expect_number(text, size, key);
        break;
    case JOB_BOOLEAN:
        snprintf(text, size, "true or false");
        break;
    case JOB_ENUM:
    case JOB_CHOICE:
    case JOB_ENVIRONMENT:
        expect_names(text, size, key);
        break;
    case JOB_NAME:
        snprintf(text, size, "1 to %d of the characters A-Z a-z 0-9 . _ - that begin with neither . nor -",
                 JOB_NAME_BYTES - 1);
        break;
    }
}

void job_key_expected(char text[JOB_EXPECTED_BYTES], const struct job_key *key)
{
    int length = snprintf(text, JOB_EXPECTED_BYTES, "%s%s", key->nullable ? "null or " : "",
                          key->list_of_one ? "an array of exactly one element, " : "");
    expect_value(text + length, JOB_EXPECTED_BYTES - (size_t)length, key);
}

void job_key_expected_element(char text[JOB_EXPECTED_BYTES], const struct job_key *key)
{
    expect_value(text, JOB_EXPECTED_BYTES, key);
}

/* ---- defaults ---- */

static void set_default(struct job *job, const struct job_key *key)
{
    char *at = (char *)job + key->offset;
    if (key->nullable)
        *((bool *)((char *)job + key->offset_present)) = !key->null_by_default;
    if (key->type == JOB_INTEGER && key->bytes == sizeof(uint32_t))
        *(uint32_t *)(void *)at = (uint32_t)key->default_number;
    else if (key->type == JOB_INTEGER)
        *(uint64_t *)(void *)at = (uint64_t)key->default_number;
    else if (key->type == JOB_NUMBER)
        *(double *)(void *)at = key->default_number;
    else if (key->type == JOB_BOOLEAN)
        *(bool *)at = key->default_number != 0;
    else if (key->type == JOB_ENUM)
        *(int *)(void *)at = (int)key->default_number;
    else if (key->type == JOB_CHOICE || key->type == JOB_ENVIRONMENT)
        snprintf(at, key->bytes, "%s", key->names[(size_t)key->default_number]);
}

void job_defaults(struct job *job)
{
    memset(job, 0, sizeof *job);
    for (size_t i = 0; i < job_key_count; i++)
        if (job_keys[i].type != JOB_OBJECT)
            set_default(job, &job_keys[i]);
}
