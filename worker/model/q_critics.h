/* The critics of SAC and TD3: several networks that each estimate the return of an observation and an action,
 * and a target for each. The least of their estimates counts (clipped double Q-learning; Fujimoto et al.,
 * 2018). Private to worker/model. One thread. */
#ifndef WORKER_MODEL_Q_CRITICS_H
#define WORKER_MODEL_Q_CRITICS_H

#include "worker/model/q_learning.h"

struct q_critics {
    uint32_t count;
    struct q_network of[POLICY_CRITICS_MAX];
    struct dense_matrix value[POLICY_CRITICS_MAX]; /* (a chunk's rows, 1) of the last forward */
    struct dense_matrix pull;                      /* (a chunk's rows, 1) */
    struct dense_matrix input_pull;                /* (a chunk's rows, inputs + components) */
};

/* *c is all zero before; q_critics_close also follows a failure. STATUS_NO_MEMORY. */
enum status q_critics_open(struct q_critics *c, const struct q_learning *p, struct error *error);
void q_critics_close(struct q_critics *c);
void q_critics_load(struct q_critics *c, const struct q_learning *p);

/* Writes the least of the targets' values of the chunk in p->input. */
void q_critics_judge(struct q_critics *c, const struct q_learning *p, uint32_t count, double *least);

/* Adds the chunk's part of `scale` sum_j mean (Q_j - target)^2 and its gradient: of the batch's own actions,
 * for rows first … first + count - 1. Returns that part. */
double q_critics_learn(struct q_critics *c, struct q_learning *p, const struct policy_transitions *batch,
                       uint32_t first, uint32_t count, const double *target, double scale);

/* Adam's step of every critic, after the whole batch. STATUS_INTERNAL as policy_fit. */
enum status q_critics_step(struct q_critics *c, const struct q_learning *p,
                           const struct policy_transitions *batch, double lr, struct error *error);

/* Writes the least value of the first `used` critics, of the chunk in p->input, and by dL/d that value, the
 * same for all rows, dL/d the actions there (count, components). */
void q_critics_pull(struct q_critics *c, const struct q_learning *p, uint32_t used, uint32_t count,
                    float slope, double *least, struct dense_matrix d_actions);

void q_critics_follow(struct q_critics *c, const struct q_learning *p);

#endif
