/* Shared by the tape's files: tape.c (life, leaves), tape_record.c (recording), tape_walk.c (the gradient),
 * tape_look.c (reading results), tape_records.c (the memory of variables and nodes), tape_ops.c (operations
 * by name).
 *
 * Memory. The arena counts the owners of a block (variables, saved tensors, gradients), for a reshape's
 * output is its input's memory, and an add's two input gradients may both be its output's. Memory outside the
 * arena (parameters, constants, seeds, outputs of higher layers) is never released, and nothing is added into
 * it.
 *
 * Variables and nodes come from pools that only grow: their addresses hold for the whole step, and a
 * series of equal steps allocates nothing. */
#ifndef KERNELS_TAPE_TAPE_INTERNAL_H
#define KERNELS_TAPE_TAPE_INTERNAL_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"

/* ---- pools ---- */

struct pool {
    size_t item_bytes;
    uint32_t used, chunk_count;
    void **chunks;
};

void pool_init(struct pool *pool, size_t item_bytes);
void pool_fini(struct pool *pool);
void *pool_take(struct pool *pool); /* zeroed; NULL: no memory */
void *pool_at(const struct pool *pool, uint32_t index);
static inline void pool_clear(struct pool *pool)
{
    pool->used = 0;
}

/* ---- variables and nodes ---- */

enum source { SOURCE_INPUT, SOURCE_CONSTANT, SOURCE_PARAMETER, SOURCE_OPERATION, SOURCE_NODE };

struct variable {
    struct tape *tape;
    uint64_t step;         // of the tape in which it was made
    struct tensor *tensor; // its value: &own, or the parameter's
    struct tensor own;
    void *block; // own.data where the variable is an owner of it; else NULL
    struct parameter *parameter;
    enum source source;
    const char *what;  // operation or node that made it
    const char *label; // a name to tell it by: its own, or of what it was made from
    bool label_is_own; // the label names an input of the very operation
    bool needs_gradient, wants_gradient;
    bool taken;       // some operation has it as an input
    bool released;    // its value is gone
    uint32_t readers; // recorded backwards that still read the value; counted when a walk begins
    bool has_gradient;
    struct tensor gradient;
    void *gradient_block; // gradient.data, likewise
};

struct node {
    const struct op_rule *rule; // NULL: a node of a higher layer
    struct op_call call;
    const char *name;
    uint32_t inputs, outputs;
    struct variable *in[OP_INPUTS_MAX];
    struct variable *out[OP_OUTPUTS_MAX];
    bool needs_gradient;
    void *context; // of a higher layer
    tape_node_backward *backward;
    tape_node_release *release;
};

enum walk_state { WALK_NONE, WALK_PAUSED, WALK_OVER };

struct tape {
    struct backend *backend;
    struct arena *arena;
    struct pool variables, nodes;
    enum tape_mode mode;
    struct gradients *gradients;
    uint64_t step;
    struct error error; // status STATUS_OK: none
    tape_progress *progress;
    void *progress_context;

    /* The walk. While it is paused, nodes[cursor - 1] waits, with these arguments. */
    enum walk_state walk;
    uint32_t cursor;
    const struct tensor *dout[OP_OUTPUTS_MAX];
    struct tensor din[OP_INPUTS_MAX];
    struct tensor *direct[OP_INPUTS_MAX]; // the slab's part that din writes straight into
};

/* ---- tape.c ---- */

/* Keeps the first failure. Returns the tape's status. */
enum status tape_stick(struct tape *tape, const struct error *error);

/* Tells the progress callback. */
void tape_tick(struct tape *tape);

/* A new variable with `label` for messages; NULL, sticking, without memory. */
struct variable *tape_variable(struct tape *tape, enum source source, const char *label);

/* `memory` if a block of the tape's arena begins there; else NULL, for memory that is not the tape's. */
static inline void *tape_block(const struct tape *tape, void *memory)
{
    return arena_owners(tape->arena, memory) > 0 ? memory : NULL;
}

/* STATUS_OK: the variable belongs to this tape and step, and its value is there. Otherwise sticks. */
enum status tape_check(struct tape *tape, const struct variable *variable, const char *by);

/* Calls the release function of a node of a higher layer, once. */
void node_release(struct node *node);

/* ---- tape_walk.c ---- */

/* Releases a variable's value, if it is the tape's. */
void variable_release_value(struct tape *tape, struct variable *variable);

#endif
