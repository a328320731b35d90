/* Seats: one for each observer of the job. A seat outlives its observer's session: when the observer dies,
 * its successor takes the seat and plays the episode again from the first step. Environments are functions of
 * the job's seed, and the successor gets the actions that its predecessor got. So its steps come out as
 * recorded, up to where the predecessor stopped.
 *
 * The record ends at the first step that differs. The seat's later rows are forgotten, and the successor's
 * take their place. An action's draw depends on the step and the row alone, so other environments get the
 * same actions again. All rows are forgotten if the environments cannot be seeded, or if the job continues
 * them and no saved state is there.
 *
 * If rollouts continue (/rollout/begin "continue"), every answer to run_episode carries the states of the
 * seat's environments. A successor gets them with its request. Format: for each environment in order, the
 * length in bytes (uint32), then the state.
 *
 * Groups with the same number, one of each seat, share a coalescer, which batches the waiting requests. Each
 * group has at most one step waiting.
 *
 * The agent's thread. No call blocks, but seats_launch for the policy's arithmetic. */
#ifndef WORKER_REINFORCE_OBSERVER_SEATS_H
#define WORKER_REINFORCE_OBSERVER_SEATS_H

#include "worker/net/rpc.h"
#include "worker/reinforce/recording.h"
#include "worker/worker.h"

struct seats;

/* Takes an answer to the request of seats_call. STATUS_INVALID costs the observer its session. */
typedef enum status seats_answer(void *context, uint32_t seat, const struct rpc_message *answer);

/* The seats of the worker's job. The first failure within a callback goes into *failure, and ends the job.
 * Both outlive *out. STATUS_NO_MEMORY. seats_free also follows a failure; NULL is allowed. */
enum status seats_new(struct seats **out, struct worker *worker, struct error *failure, struct error *error);
void seats_free(struct seats *seats);

/* Before the first observer has described its environment. All outlive *seats. */
void seats_open(struct seats *seats, const struct environment_description *world, struct recording *recording,
                struct policy *policy);

/* ---- sessions ---- */

/* The seat's observer has described its environment; or its session has ended. */
void seats_set_described(struct seats *seats, uint32_t seat, bool is_described);

bool seats_is_described(const struct seats *seats, uint32_t seat);
bool seats_are_described(const struct seats *seats);

/* ---- calls ---- */

/* Asks every observer to play the episode, `episode` of the job. Errors as rpc_call_then. */
enum status seats_play(struct seats *seats, uint64_t episode, struct error *error);

/* Calls one seat's observer for something else than an episode. Without an observer the seat is lost, and its
 * successor is to be asked. Errors as rpc_call_then. */
enum status seats_call(struct seats *seats, uint32_t seat, enum wire_method method,
                       const struct rpc_message *message, seats_answer *answer, void *context,
                       struct error *error);

/* Calls the seat's observer by seats_call, or leaves the seat out. */
typedef enum status seats_ask(void *context, uint32_t seat, struct error *error);

/* Forgets the calls before, and asks every seat. */
enum status seats_ask_all(struct seats *seats, seats_ask *ask, void *context, struct error *error);

/* Call it every turn until all have answered. Asks the successors of lost observers; `ask` NULL: to play
 * the running episode. STATUS_AGAIN: answers are missing. STATUS_SHUTDOWN: an order to hurry has cut it
 * short. Other errors: of the first answer that failed, or of `ask`. */
enum status seats_await(struct seats *seats, seats_ask *ask, void *context, struct error *error);

/* ---- steps ---- */

/* Takes a decoded METHOD_STEP of the running episode. It is recorded, and waits for its actions; or it
 * repeats a recorded one and gets those actions. STATUS_INVALID: it does not follow, and costs its observer
 * the session; STATUS_NO_MEMORY. After an error the request is the caller's to complete. */
enum status seats_step(struct seats *seats, uint32_t seat, struct rpc_request *request,
                       const struct step *step, struct error *error);

/* How many steps of the running episode are recorded of every group. */
uint32_t seats_recorded(const struct seats *seats);

/* Actions of steps below `horizon` may be chosen; requests of later ones wait. */
void seats_allow(struct seats *seats, uint32_t horizon);

/* Launches every batch that is due, and answers its requests. The worker reports how many wait on. */
void seats_launch(struct seats *seats);

/* When the next batch is due, as coalescer_due. */
struct monotime seats_due(const struct seats *seats);

/* Fails all requests with STATUS_SHUTDOWN. */
void seats_clear(struct seats *seats);

/* Fills what the running episode's launches and waits came to. */
void seats_report(const struct seats *seats, struct control_episode *record);

/* ---- states ---- */

/* Save writes all seats' states, unless `out` is NULL, and returns their bytes; 0: a seat has none. Load is
 * called before the first episode; STATUS_INVALID comes with a sentence. Seats without states begin anew;
 * states beyond the job's seats are ignored. */
size_t seats_save(const struct seats *seats, char *out);
enum status seats_load(struct seats *seats, const char *from, size_t bytes, struct error *error);

#endif
