/* The words of the table's rows: sets of kinds, and conditions. job_keys.c, job_rules.c and job_documents.c
 * include this. */
#ifndef WORKER_JOB_JOB_TABLE_WORDS_H
#define WORKER_JOB_JOB_TABLE_WORDS_H

#include "worker/job/job_table.h"

enum {
    ANY = JOB_KINDS_ALL,
    REINFORCE = JOB_KINDS_OF(JOB_REINFORCE),
    PPO = JOB_KINDS_OF(JOB_VARIANT_PPO),
    A2C = JOB_KINDS_OF(JOB_VARIANT_A2C),
    ACTOR_CRITIC = PPO | A2C,
    DQN = JOB_KINDS_OF(JOB_VARIANT_DQN),
    SAC = JOB_KINDS_OF(JOB_VARIANT_SAC),
    TD3 = JOB_KINDS_OF(JOB_VARIANT_TD3),
    OFF_POLICY = DQN | SAC | TD3,         /* these learn from a replay buffer */
    STEPWISE = ACTOR_CRITIC | OFF_POLICY, /* these end after a number of steps */
    AGENT = REINFORCE | STEPWISE,
    SERVER = JOB_KINDS_OF(JOB_PARAMETER_SERVER),
    PARALLEL = JOB_KINDS_OF(JOB_MODEL_PARALLEL),
    TRAINERS = SERVER | PARALLEL, /* both have servers and trainers */
};

/* clang-format off */
#define IS(key, value) {key, JOB_IS, value, 0}
#define IS_NULL(key) {key, JOB_IS_NULL, NULL, 0}
#define IS_SET(key) {key, JOB_IS_SET, NULL, 0}
#define AT_LEAST(key, bound) {key, JOB_AT_LEAST, NULL, bound}
#define AT_MOST(key, bound) {key, JOB_AT_MOST, NULL, bound}
#define AT_MOST_KEY(key, other) {key, JOB_AT_MOST_KEY, other, 0}
#define BELOW_KEY(key, other) {key, JOB_AT_MOST_KEY, other, 1}
/* clang-format on */

#endif
