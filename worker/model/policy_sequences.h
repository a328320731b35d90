/* What the memories of a policy on a backend compute with: rows as sequences, and the states before and after
 * them.
 *
 *     sequence     rows that follow each other in one environment; only the first may be a start
 *     grid         (steps, sequences), through which an operation of the tape runs at once
 *     piece        sequences of a minibatch that share one grid
 *     place        the number of a row in a grid
 *
 * An operation of the tape knows no starts, and its sequences are equally long. So a minibatch's rows are cut
 * at each start, and sequences of about the same length make a piece: the shortest is longer than half of the
 * longest. The rest of its grid repeats rows, and nothing reads what comes of them. When rows act, each is a
 * sequence of one step. One thread; only policy_sequences_new allocates. */
#ifndef WORKER_MODEL_POLICY_SEQUENCES_H
#define WORKER_MODEL_POLICY_SEQUENCES_H

#include "worker/model/policy.h"

struct policy_recurrence;
struct policy_sequences;
struct tape;

/* The next number that has at most three binary digits in front of its zeros: up to a quarter more than
 * `count`. A backend plans for few sizes then. */
uint32_t policy_round_up(uint32_t count);

/* For steps of at most `act_rows` rows, and for the configuration's minibatches. A piece has at most
 * `piece_rows` rows, or else one sequence. STATUS_NO_MEMORY. policy_sequences_free also follows a failure;
 * NULL is allowed. */
enum status policy_sequences_new(struct policy_sequences **out, const struct policy_config *config,
                                 uint32_t act_rows, uint32_t piece_rows, struct error *error);
void policy_sequences_free(struct policy_sequences *sequences);

/* Lays out one step of `places` sequences, with their states: row i is at place[i], or, with NULL, at place
 * i. Zeros are before the others. */
void policy_sequences_step(struct policy_sequences *sequences, const struct policy_rows *rows,
                           const uint32_t *place, uint32_t places);

/* Cuts a minibatch, whose rows ascend, into sequences. The rows' arrays remain until its last piece. */
void policy_sequences_cut(struct policy_sequences *sequences, const struct policy_rows *rows);

/* Lays out the piece that begins behind `first` rows in other pieces. Returns its rows, sequence by sequence.
 */
struct policy_rows policy_sequences_piece(struct policy_sequences *sequences, uint32_t first);

/* The inputs of a tape for what was last laid out; a piece's rows are filled up by policy_round_up. Errors
 * stick in the tape. */
struct policy_recurrence policy_sequences_input(const struct policy_sequences *sequences, struct tape *tape);

/* Reads the states behind the step, until the tape has waited; and writes them behind the rows that the step
 * was laid out for. */
void policy_sequences_read(struct policy_sequences *sequences, struct tape *tape,
                           const struct policy_recurrence *recurrence);
void policy_sequences_keep(const struct policy_sequences *sequences, const struct policy_rows *rows,
                           const uint32_t *place);

#endif
