/* REINFORCE: turns a finished rollout into the policy's next parameters, by one step. PPO and A2C have ppo.h
 * in its place; DQN, SAC and TD3 learn while a rollout is played (off_policy.h).
 *
 * It runs on the agent's thread, at the top level of the loop: the agent launches nothing before the next
 * parameters are there. The policy shares out a large rollout's rows to threads of its own (/policy/threads),
 * on the processors that the observers do not need meanwhile. `progress` serves sockets, orders and the beat.
 * A learner that hangs therefore stops the beat, and the watchdog sees it. */
#ifndef WORKER_REINFORCE_REINFORCE_H
#define WORKER_REINFORCE_REINFORCE_H

#include "worker/job/job.h"
#include "worker/model/policy.h"
#include "worker/reinforce/rollout.h"

/* Weighs all rows and takes one step of the policy. *loss is the one under the old parameters. `progress` is
 * policy_learn's. On failure the parameters are as before, and *error names the episode and the cause. */
enum status reinforce_learn(struct policy *policy, struct rollout *rollout, const struct job *job,
                            policy_progress *progress, void *context, double *loss, struct error *error);

/* Fills rollout->order with every row that is learned from, by (column, step), and rollout->coefficients with
 * the row's return, the discounted sum of rewards, or of their signs, to its segment's end: R_t = r_t + gamma
 * R_(t+1), in double, last row first. Rows of absent agents, and segments that end with ENVIRONMENT_FAILED,
 * are left out. Returns the number of rows.
 *
 * With /returns/normalize, per column: (R - mean) / (std + 1.19e-7), std with n - 1. That runs over all of
 * one column's rows, so that it does not depend on how environments are spread; a column with a single row
 * has no standard deviation and gets coefficient 0. With the mean as /loss/reduction: over the columns. */
uint32_t reinforce_weigh(struct rollout *rollout, const struct job *job);

#endif
