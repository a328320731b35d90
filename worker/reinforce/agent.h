/* The room of the job kind `reinforce`: one agent, which acts and learns, and its observers, which step the
 * environments. Each is one thread.
 *
 *     episode    of the job: one rollout, one update of the policy, one line in the log
 *     rollout    the rows of an episode: what each column saw, did and earned, step by step
 *     column     one agent of one environment; a row is a column's entry of one step
 *     step       a decoded METHOD_STEP: the rows of a group of environments, which asks for their actions
 *     group      environments that are stepped together; an observer has one or several
 *     seat       an observer's place in the job; its successor takes the seat
 *     batch      the rows of the steps that one pass of the policy answers, launched by a coalescer
 *     closing step   the step behind the last one: it shows what followed, and asks for no actions
 *     share      the episodes of an evaluation that one observer plays
 *
 * The way of a step:
 *
 *     observer      gathers the rows, and sends METHOD_STEP      observer.c
 *     agent         receives, and decodes into a struct step     agent.c, step_message.c
 *     seats         hold the step to those before                observer_seats.c
 *     recording     keeps the rows                               recording.c, rollout.c
 *     seats         keep the request until its batch is due      observer_seats.c, coalescer.c
 *     rollout       has the policy act on the batch              rollout.c
 *     seats         reply
 *
 * Then, episode by episode, agent.c has updates.c or off_policy.c compute the next parameters, the
 * evaluator (evaluator.c) play apart from training, and saving (saving.c) take checkpoints. A job without
 * observers has its environments in the agent's own process (observer.h): the rows go the same way without
 * request and reply.
 *
 * Each of these owns its struct. The agent owns them all, and calls them; none of them calls the agent. The
 * room may include the frame (worker/), job, net, environment, model and checkpoint (scripts/rooms). */
#ifndef WORKER_REINFORCE_AGENT_H
#define WORKER_REINFORCE_AGENT_H

#include "worker/worker.h"

/* The agent's loop: declared in worker/worker.h, as every role's. */
role_run agent_run;

#endif
