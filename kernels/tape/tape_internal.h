/* Shared by the tape's files: tape.c (life, leaves), tape_record.c (recording), tape_walk.c (the gradient),
 * tape_look.c (reading results), tape_pool.c (memory), tape_ops.c (operations by name).
 *
 * Memory. Blocks of the arena are shared: a reshape's output is its input's memory, an add's two input
 * gradients may both be its output's. So each block of the tape has a record that counts its owners
 * (variables, saved tensors, gradients) and returns to the arena with the last one. A backend returns either
 * a new block or memory of the same call's tensors; blocks_adopt finds out which. Memory outside the arena
 * (parameters, constants, seeds, outputs of higher layers) has no record, is never released, and nothing is
 * added into it.
 *
 * Records, variables and nodes come from pools that only grow: their addresses hold for the whole step, and a
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

/* ---- blocks ---- */

struct block {
    void *data;
    uint32_t owners;
    struct block *next_free;
};

/* Memory of a call, and its block (NULL: not the arena's). */
struct held {
    const void *data;
    struct block *block;
};

/* ---- variables and nodes ---- */

enum source { SOURCE_INPUT, SOURCE_CONSTANT, SOURCE_PARAMETER, SOURCE_OPERATION, SOURCE_NODE };

struct variable {
    struct tape *tape;
    uint64_t step;         // of the tape in which it was made
    struct tensor *tensor; // its value: &own, or the parameter's
    struct tensor own;
    struct block *block; // of own.data
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
    struct block *gradient_block;
};

struct node {
    const struct op_rule *rule; // NULL: a node of a higher layer
    struct op_call call;
    struct block *saved[OP_SAVED_MAX];
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
    struct pool variables, nodes, blocks;
    struct block *free_blocks;
    enum tape_mode mode;
    struct gradients *gradients;
    bool adds; // other tapes add to the gradients too
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

/* STATUS_OK: the variable belongs to this tape and step, and its value is there. Otherwise sticks. */
enum status tape_check(struct tape *tape, const struct variable *variable, const char *by);

/* Calls the release function of a node of a higher layer, once. */
void node_release(struct node *node);

/* ---- tape_pool.c: blocks ---- */

/* Finds the block of `data`: that of one of `held`, which gets one more owner, or a new block of the arena.
 * STATUS_NO_MEMORY: no room for the record. */
enum status blocks_adopt(struct tape *tape, void *data, const struct held *held, uint32_t held_count,
                         struct block **out, struct error *error);
void blocks_release(struct tape *tape, struct block *block); /* NULL is nothing */

/* ---- tape_walk.c ---- */

/* Adds a gradient to what the variable has. The block (NULL: not the arena's) passes to the variable. */
enum status walk_contribute(struct tape *tape, struct variable *variable, const struct tensor *gradient,
                            struct block *block, struct error *error);

/* Releases a variable's value, if it is the tape's. */
void variable_release_value(struct tape *tape, struct variable *variable);

#endif
