/* What a network on a backend reads: pieces of a batch. Private to worker/model; policy_tape.c and
 * policy_dqn_tape.c cut their batches by it.
 *
 *     piece     rows that the network computes together
 *     filled    how many rows it computes: zeros behind, or between, the piece's rows make them so many
 *     place     where in the piece a row is
 *
 * A backend's sums depend on the piece's size and on the row's place in it. So each environment acts at its
 * own place, whoever acts beside it. */
#ifndef WORKER_MODEL_POLICY_PIECES_H
#define WORKER_MODEL_POLICY_PIECES_H

#include "worker/model/policy_internal.h"

enum {
    POLICY_PIECE_FLOATS = 1 << 24,              /* of a piece's observations, unless one has more */
    POLICY_SOURCES_MAX = POLICY_IMAGES_MAX + 1, /* images in the order of the parts, then the floats */
};

struct policy_piece {
    struct policy_rows rows;
    uint32_t filled;
    const uint32_t *place; /* (rows.count) of each row, ascending; NULL: row i is at place i */
    bool keeps_states;     /* writes the states behind the rows */
};

/* One array that the network reads: the observation; or, of one with parts, an image, or all floats. */
struct policy_source {
    const char *part;                 /* of an image, the part's name; else NULL */
    bool image;                       /* read as (channels, height, width) */
    size_t offset;                    /* of an image in its row, in bytes */
    uint32_t elements;                /* of a row */
    uint32_t height, width, channels; /* 1, 1 and `elements` of a vector */
    uint32_t features;                /* that the network makes of them; of one with parts */
    float *read;                      /* (rows_max, elements) */
    float *place; /* (all features, features): ones where these stand among all; of one with parts */
};

struct policy_pieces {
    const struct dense_normalizer *normalizer; /* of floats; NULL: none */
    bool bytes;                                /* observations are uint8 */
    size_t row_bytes;                          /* of an observation */
    uint32_t inputs;                           /* elements of all sources */
    uint32_t sources;
    struct policy_source source[POLICY_SOURCES_MAX];
    uint32_t part_count; /* 0: the observation is one thing */
    const struct environment_part *parts;
    uint32_t features;         /* of all parts */
    uint32_t piece_rows;       /* of a piece, at most, unless the policy says otherwise */
    uint32_t rows_max;         /* of every piece: what the arrays have room for */
    uint32_t places, act_rows; /* one for each environment; those of a piece */
    float parts_of_255[256];   /* a byte as the network reads it: its 255th part */
    /* (rows_max) each, of the rows that act in a piece: what struct policy_rows and policy_act have, and the
     * place in the piece. */
    uint32_t *row, *environment, *step, *place;
};

/* Sets everything but the arrays, by the observations and environments of the configuration. `normalizer` is
 * NULL or outlives the pieces. */
void policy_pieces_describe(struct policy_pieces *pieces, const struct policy_config *config,
                            const struct dense_normalizer *normalizer);

/* Takes the arrays of rows_max rows. policy_pieces_close also follows a failure. STATUS_NO_MEMORY. */
enum status policy_pieces_open(struct policy_pieces *pieces, struct error *error);
void policy_pieces_close(struct policy_pieces *pieces);

/* The size of pieces of at most `rows_max` that share `rows` evenly. */
uint32_t policy_share_evenly(uint32_t rows, uint32_t rows_max);

/* At most rows_max rows of the batch, from number `first` on. `filled` 0: to a power of two. */
struct policy_piece policy_piece_cut(const struct policy_rows *rows, uint32_t first, uint32_t rows_max,
                                     uint32_t filled);

/* Acts for the rows of one piece, by the draws of these rows; `draw` NULL: greedily. */
typedef enum status policy_piece_act(const void *self, const struct policy_piece *piece,
                                     const struct dense_draw *draw, struct error *error);

/* Acts for all rows of a batch, whose environments are below config->environments, each at most once: each at
 * its environment's own place. `draw` NULL: row by row. Errors as `act`'s. */
enum status policy_pieces_act(const struct policy_pieces *pieces, const struct policy_rows *rows,
                              const struct dense_draw *draw, policy_piece_act *act, const void *self,
                              struct error *error);

/* Puts the piece's observations into what the sources read: bytes become their 255th parts, images have their
 * channels first. */
void policy_pieces_read(const struct policy_pieces *pieces, const struct policy_piece *piece);

/* What the sources read, on a tape, `filled` rows. */
struct policy_inputs policy_pieces_input(const struct policy_pieces *pieces, struct tape *tape,
                                         uint32_t filled);

/* Moves the rows of an array of the piece (filled, columns) from their places to the front, in their order.
 */
void policy_piece_gather(const struct policy_piece *piece, float *rows, uint32_t columns);

/* Rows that fill up pull at nothing: zeros behind the piece's rows of `pulls` (filled, columns). */
void policy_piece_clear(const struct policy_piece *piece, float *pulls, uint32_t columns);

#endif
