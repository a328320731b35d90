/* The rules between the keys of a job file, and the limits on their products, row by row; see job_table.h. */
#include "worker/job/job_table_words.h"

#define NEVER_ENDS "without a limit the job never ends"
#define PYTHON_SENDS "trainers in Python send float32"
#define ONE_SOURCE "an environment comes from one place"
#define SEEDED "the seed of an environment in C decides what comes"
#define ALE "it plays games of ALE's"
#define OWN_PROCESS "environments in Python run in processes of their own"
#define NO_SEGMENT "trainers in Python have no shared memory with the servers"
#define PLATEAU "a plateau is found in the held-out loss"
#define ONE_CRITIC "the value reads one memory"
#define ONE_EPISODE "several environments end their episodes at different times"
#define BATCH_NORM "the last stage has 1 * 1 pixels, and its batch norm would see one value per channel"

/* clang-format off */
const struct job_rule job_rules[] = {
    {REINFORCE, .when = {IS_NULL("/stop/episodes")}, .then = IS_SET("/stop/running_reward"), .why = NEVER_ENDS},
    {REINFORCE, .when = {IS("/rollout/mode", "episode")}, .then = IS("/rollout/begin", "reset")},
    {AGENT, .then = AT_MOST_KEY("/observers/groups", "/observers/environments")},
    {AGENT, .when = {IS_SET("/environment/plugin")}, .then = IS_NULL("/environment/gymnasium"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/plugin")}, .then = IS_NULL("/environment/class"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/gymnasium")}, .then = IS_NULL("/environment/class"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/plugin")}, .then = IS_NULL("/environment/pettingzoo"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/gymnasium")}, .then = IS_NULL("/environment/pettingzoo"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/class")}, .then = IS_NULL("/environment/pettingzoo"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/pettingzoo")}, .then = IS_NULL("/environment/name"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/gymnasium")}, .then = IS_NULL("/environment/name"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/class")}, .then = IS_NULL("/environment/name"), .why = ONE_SOURCE},
    {AGENT, .when = {IS_SET("/environment/name")}, .then = IS("/environment/renew", "false"), .why = SEEDED},
    {AGENT, .when = {IS_SET("/environment/plugin")}, .then = IS("/environment/renew", "false"), .why = SEEDED},
    {AGENT, .when = {IS("/environment/atari", "true")}, .then = IS_SET("/environment/gymnasium"), .why = ALE},

    {STEPWISE, .when = {IS_SET("/environment/gymnasium")}, .then = AT_LEAST("/observers/count", 1), .why = OWN_PROCESS},
    {STEPWISE, .when = {IS_SET("/environment/class")}, .then = AT_LEAST("/observers/count", 1), .why = OWN_PROCESS},
    {STEPWISE, .when = {IS_SET("/environment/pettingzoo")}, .then = AT_LEAST("/observers/count", 1), .why = OWN_PROCESS},
    {STEPWISE, .when = {IS_SET("/stop/evaluation_reward")}, .then = IS_SET("/evaluation/every")},
    {OFF_POLICY, .when = {IS("/algorithm/train_freq", "episode")}, .then = AT_MOST("/observers/environments", 1), .why = ONE_EPISODE},
    {OFF_POLICY, .when = {IS("/algorithm/train_freq", "episode")}, .then = AT_MOST("/observers/count", 1), .why = ONE_EPISODE},

    {ACTOR_CRITIC, .when = {IS_SET("/policy/recurrent"), IS("/policy/shared_lstm", "true")},
     .then = IS("/policy/enable_critic_lstm", "false"), .why = ONE_CRITIC},

    {SERVER, .when = {AT_MOST("/data/size", 32)}, .then = AT_LEAST("/trainers/batch", 2), .why = BATCH_NORM},
    {SERVER, .when = {AT_LEAST("/server/count", 2)}, .then = IS("/server/round", "all")},
    {SERVER, .when = {IS_SET("/trainers/class")}, .then = IS("/transport/memory", "inline"), .why = NO_SEGMENT},
    {SERVER, .when = {IS_SET("/trainers/class")}, .then = IS("/transport/precision", "float32"), .why = PYTHON_SENDS},
    {SERVER, .when = {IS("/server/round", "first")}, .then = AT_MOST_KEY("/server/round", "/trainers/count")},
    {SERVER, .when = {IS("/data/kind", "idx")}, .then = IS_SET("/data/path")},
    {SERVER, .when = {IS("/data/kind", "cifar")}, .then = IS_SET("/data/path")},
    {SERVER, .when = {IS("/data/kind", "folder")}, .then = IS_SET("/data/path")},
    {SERVER, .when = {IS("/data/kind", "class")}, .then = IS_SET("/trainers/class")},
    {SERVER, .when = {AT_MOST("/data/channels", 1)}, .then = AT_MOST("/data/mean", 1)},
    {SERVER, .when = {AT_MOST("/data/channels", 1)}, .then = AT_MOST("/data/std", 1)},
    {SERVER, .when = {IS_NULL("/stop/updates")}, .then = IS_SET("/stop/epochs"), .why = NEVER_ENDS},
    {SERVER, .when = {IS("/data/kind", "synthetic"), IS_SET("/stop/epochs")}, .then = IS_SET("/stop/updates"),
     .why = "synthetic data has no epochs; a class has them with /data/kind \"class\""},

    {PARALLEL, .when = {IS("/data/kind", "text")}, .then = IS_SET("/data/path")},
    {PARALLEL, .when = {IS("/data/kind", "text")}, .then = IS_NULL("/model/tokens"),
     .why = "the text brings its own vocabulary"},
    {PARALLEL, .when = {IS("/data/kind", "synthetic")}, .then = IS_SET("/model/tokens")},
    {PARALLEL, .when = {IS("/data/kind", "text")}, .then = IS("/loss/classes", "tokens")},
    {PARALLEL, .when = {AT_LEAST("/trainers/count", 2)}, .then = IS("/placement/embedding", "server")},
    {PARALLEL, .when = {AT_LEAST("/trainers/count", 2)}, .then = IS("/placement/lstm", "server")},
    {PARALLEL, .when = {AT_LEAST("/trainers/count", 2)}, .then = IS("/placement/decoder", "server")},
    {PARALLEL, .then = BELOW_KEY("/placement/embedding", "/server/count")},
    {PARALLEL, .then = BELOW_KEY("/placement/lstm", "/server/count")},
    {PARALLEL, .then = BELOW_KEY("/placement/decoder", "/server/count")},
    {PARALLEL, .when = {IS("/data/kind", "synthetic")}, .then = IS("/optimizer/schedule", "constant"), .why = PLATEAU},
    {PARALLEL, .when = {AT_MOST("/data/held_out", 0)}, .then = IS("/optimizer/schedule", "constant"), .why = PLATEAU},
    {PARALLEL, .when = {IS_NULL("/evaluation/every")}, .then = IS("/optimizer/schedule", "constant"), .why = PLATEAU},
    {PARALLEL, .when = {IS_NULL("/stop/updates")}, .then = IS_SET("/stop/epochs"), .why = NEVER_ENDS},
};
const size_t job_rule_count = sizeof job_rules / sizeof job_rules[0];

const struct job_limit job_limits[] = {
    {AGENT, .factors = {"/observers/count", "/observers/environments"},
     .most = JOB_ENVIRONMENTS_MAX, .of = "environments"},
    {REINFORCE, .when = IS("/rollout/mode", "steps"),
     .factors = {"/observers/count", "/observers/environments", "/rollout/steps"},
     .most = JOB_ROLLOUT_ROWS_MAX, .of = "rows in a rollout"},
    {ACTOR_CRITIC, .factors = {"/observers/count", "/observers/environments", "/algorithm/n_steps"},
     .most = JOB_ROLLOUT_ROWS_MAX, .of = "rows in a rollout"},
    {OFF_POLICY, .factors = {"/observers/count", "/observers/environments", "/rollout/steps"},
     .most = JOB_ROLLOUT_ROWS_MAX, .of = "rows in a rollout"},
    {TRAINERS, .factors = {"/trainers/count", "/trainers/batch"},
     .most = JOB_UPDATE_SAMPLES_MAX, .of = "samples in an update"},
    {SERVER, .factors = {"/trainers/batch", "/data/channels", "/data/size", "/data/size"},
     .most = JOB_BATCH_VALUES_MAX, .of = "values in a batch"},
    {SERVER, .factors = {"/evaluation/batch", "/data/channels", "/data/size", "/data/size"},
     .most = JOB_BATCH_VALUES_MAX, .of = "values in a batch"},
};
const size_t job_limit_count = sizeof job_limits / sizeof job_limits[0];
/* clang-format on */
