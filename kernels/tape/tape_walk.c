/* The walk: gradients, in reverse order of recording.
 *
 * A variable's first gradient is kept as it came. A later one is added into it if its block has no other
 * owner, else into the arriving one if that has none, else both into a new tensor. A parameter's first
 * gradient is computed straight into its entry of the gradient slab. As the walk passes a node, every value
 * that no earlier node reads goes back to the arena. */
#include "kernels/params/gradients.h"
#include "kernels/tape/tape_internal.h"

#include <string.h>

/* ---- gradients of variables ---- */

static bool sole_owner(const struct tape *tape, const void *block)
{
    return block != NULL && arena_owners(tape->arena, block) == 1;
}

/* Both have other owners: the sum needs memory of its own. */
static enum status add_apart(struct tape *tape, struct variable *variable, struct tensor *arriving,
                             void *block, struct error *error)
{
    struct tensor sum = {0};
    struct op_call call = {.op = OP_ADD, .arena = tape->arena};
    call.in[0] = &variable->gradient;
    call.in[1] = arriving;
    call.out[0] = &sum;
    enum status status = op_forward(tape->backend, &call, error);
    if (status != STATUS_OK)
        return status;
    arena_release(tape->arena, variable->gradient_block);
    arena_release(tape->arena, block);
    variable->gradient = sum;
    variable->gradient_block = sum.data;
    return STATUS_OK;
}

/* A seed on a parameter itself: the only case in which its first gradient is not in the slab. */
static enum status contribute_to_parameter(struct tape *tape, const struct parameter *parameter,
                                           const struct tensor *gradient, void *block, struct error *error)
{
    bool fresh;
    struct tensor *part = gradients_take(tape->gradients, parameter, &fresh);
    enum status status = fresh ? backend_fill(tape->backend, part, 0, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = backend_accumulate(tape->backend, tape->arena, part, gradient, error);
    arena_release(tape->arena, block);
    return status;
}

/* Adds a gradient to what the variable has. The block (NULL: not the arena's) passes to the variable. */
static enum status contribute(struct tape *tape, struct variable *variable, const struct tensor *gradient,
                              void *block, struct error *error)
{
    if (variable->parameter != NULL)
        return contribute_to_parameter(tape, variable->parameter, gradient, block, error);
    if (!variable->has_gradient) {
        variable->has_gradient = true;
        variable->gradient = *gradient;
        variable->gradient_block = block;
        return STATUS_OK;
    }
    struct tensor arriving = *gradient;
    if (!sole_owner(tape, variable->gradient_block) &&
        sole_owner(tape, block)) { // a + b is b + a, to the bit
        void *shared = variable->gradient_block;
        arriving = variable->gradient;
        variable->gradient = *gradient;
        variable->gradient_block = block;
        block = shared;
    }
    if (!sole_owner(tape, variable->gradient_block))
        return add_apart(tape, variable, &arriving, block, error);
    enum status status =
        backend_accumulate(tape->backend, tape->arena, &variable->gradient, &arriving, error);
    arena_release(tape->arena, block);
    return status;
}

static void release_gradient(struct tape *tape, struct variable *variable)
{
    if (!variable->has_gradient || variable->wants_gradient)
        return;
    arena_release(tape->arena, variable->gradient_block);
    variable->gradient_block = NULL;
    variable->has_gradient = false;
}

/* ---- values that are not read any more ---- */

void variable_release_value(struct tape *tape, struct variable *variable)
{
    if (variable->block == NULL || variable->released)
        return;
    arena_release(tape->arena, variable->block);
    variable->block = NULL;
    variable->own.data = NULL; // the address may soon be another tensor's
    variable->released = true;
}

static bool reads_in(const struct node *node, uint32_t i)
{
    return node->in[i] != NULL && (node->rule == NULL || (node->rule->in[i].flags & OP_READ));
}

static bool reads_out(const struct node *node, uint32_t i)
{
    return node->rule == NULL || (node->rule->out[i].flags & OP_READ);
}

/* Counts the backwards that read each value, and releases the values that none reads. A value that no
 * operation took (a loss, batch statistics) stays: the caller may read it. */
static void count_readers(struct tape *tape)
{
    for (uint32_t n = 0; n < tape->nodes.used; n++) {
        struct node *node = pool_at(&tape->nodes, n);
        for (uint32_t i = 0; i < node->inputs; i++)
            if (reads_in(node, i))
                node->in[i]->readers++;
        for (uint32_t i = 0; i < node->outputs; i++)
            if (reads_out(node, i))
                node->out[i]->readers++;
    }
    for (uint32_t i = 0; i < tape->variables.used; i++) {
        struct variable *variable = pool_at(&tape->variables, i);
        if (variable->taken && variable->readers == 0)
            variable_release_value(tape, variable);
    }
}

static void read_once_less(struct tape *tape, struct variable *variable)
{
    if (--variable->readers == 0 && variable->taken)
        variable_release_value(tape, variable);
}

/* The walk has passed the node. */
static void release_node(struct tape *tape, struct node *node)
{
    node_release(node);
    for (uint32_t i = 0; i < OP_SAVED_MAX; i++) {
        arena_release(tape->arena, node->call.saved[i].data);
        node->call.saved[i].data = NULL;
    }
    for (uint32_t i = 0; i < node->outputs; i++) {
        release_gradient(tape, node->out[i]);
        if (reads_out(node, i))
            read_once_less(tape, node->out[i]);
    }
    for (uint32_t i = 0; i < node->inputs; i++)
        if (reads_in(node, i))
            read_once_less(tape, node->in[i]);
}

/* ---- one node ---- */

static bool wants_din(const struct node *node, uint32_t i)
{
    return node->in[i] != NULL && node->in[i]->needs_gradient &&
           (node->rule == NULL || (node->rule->in[i].flags & OP_GRADIENT));
}

/* Sets up dout and din, which stay the same until the node has returned. */
static void prepare_node(struct tape *tape, struct node *node)
{
    for (uint32_t i = 0; i < node->outputs; i++)
        tape->dout[i] = node->out[i]->has_gradient ? &node->out[i]->gradient : NULL;
    for (uint32_t i = 0; i < node->inputs; i++) {
        const struct variable *in = node->in[i];
        tape->direct[i] = NULL;
        if (!wants_din(node, i))
            continue;
        tape->din[i] =
            (struct tensor){.shape = in->tensor->shape, .dtype = in->tensor->dtype, .name = in->tensor->name};
        if (in->parameter == NULL || node->rule == NULL)
            continue; // while a node of a higher layer waits, another tape may be the first to write the part
        bool fresh;
        struct tensor *part = gradients_take(tape->gradients, in->parameter, &fresh);
        if (!fresh)
            continue;
        tape->direct[i] = part;
        tape->din[i] = *part;
    }
}

static enum status run_operation(struct tape *tape, struct node *node, struct error *error)
{
    struct op_call *call = &node->call;
    for (uint32_t i = 0; i < node->outputs; i++)
        call->dout[i] = tape->dout[i] != NULL ? &node->out[i]->gradient : NULL;
    for (uint32_t i = 0; i < node->inputs; i++)
        call->din[i] = wants_din(node, i) ? &tape->din[i] : NULL;
    return op_backward(tape->backend, call, error);
}

/* Checks a gradient that a higher layer returned. */
static enum status check_din(const struct node *node, uint32_t i, const struct tensor *din,
                             struct error *error)
{
    const struct tensor *value = node->in[i]->tensor;
    char got[SHAPE_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    if (shape_equal(&din->shape, &value->shape) && din->dtype == value->dtype)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: a gradient of %s %s for input %u, expected %s %s",
                     node->name, dtype_name(din->dtype), shape_text(&din->shape, got), i,
                     dtype_name(value->dtype), shape_text(&value->shape, expected));
}

static enum status run_higher(struct tape *tape, struct node *node, bool first, struct error *error)
{
    struct tensor *din[OP_INPUTS_MAX] = {0};
    for (uint32_t i = 0; i < node->inputs; i++)
        din[i] = wants_din(node, i) ? &tape->din[i] : NULL;
    enum status status = node->backward(node->context, tape, first, tape->dout, din, error);
    for (uint32_t i = 0; i < node->inputs && status == STATUS_OK; i++)
        if (wants_din(node, i) && tape->din[i].data != NULL)
            status = check_din(node, i, &tape->din[i], error);
    return status;
}

/* Writes a parameter's entry of the slab, unless the operation wrote straight into it. */
static enum status write_gradient(struct tape *tape, struct tensor *part, const struct tensor *gradient,
                                  struct error *error)
{
    if (gradient->data == part->data)
        return STATUS_OK;
    enum status status = backend_fill(tape->backend, part, 0, error);
    if (status == STATUS_OK && gradient->data != NULL)
        status = backend_accumulate(tape->backend, tape->arena, part, gradient, error);
    return status;
}

/* The block of an input's gradient. A node of a higher layer may have passed on a dout's memory, which then
 * has one more owner; a backend has counted it. */
static void *din_block(struct tape *tape, const struct node *node, const struct tensor *din)
{
    for (uint32_t i = 0; i < node->outputs && node->rule == NULL; i++)
        if (tape->dout[i] != NULL && tape->dout[i]->data == din->data)
            arena_share(tape->arena, din->data);
    return tape_block(tape, din->data);
}

/* Gives each input its gradient. */
static enum status distribute_gradients(struct tape *tape, struct node *node, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < node->inputs && status == STATUS_OK; i++) {
        const struct tensor *din = &tape->din[i];
        if (!wants_din(node, i))
            continue;
        void *block = din_block(tape, node, din);
        if (tape->direct[i] != NULL) {
            status = write_gradient(tape, tape->direct[i], din, error);
            arena_release(tape->arena, block);
        } else if (din->data != NULL) {
            status = contribute(tape, node->in[i], din, block, error);
        }
    }
    return status;
}

/* STATUS_AGAIN: the node waits. */
static enum status visit_node(struct tape *tape, struct node *node, bool first, struct error *error)
{
    bool reached = false;
    for (uint32_t i = 0; i < node->outputs; i++)
        reached = reached || node->out[i]->has_gradient;
    if (node->needs_gradient && reached) {
        if (first)
            prepare_node(tape, node);
        enum status status =
            node->rule != NULL ? run_operation(tape, node, error) : run_higher(tape, node, first, error);
        if (status == STATUS_OK)
            status = distribute_gradients(tape, node, error);
        if (status != STATUS_OK)
            return status;
    }
    release_node(tape, node);
    return STATUS_OK;
}

/* ---- all nodes ---- */

static enum status walk_on(struct tape *tape, bool first)
{
    while (tape->cursor > 0) {
        struct error error = {0};
        enum status status = visit_node(tape, pool_at(&tape->nodes, tape->cursor - 1), first, &error);
        if (status == STATUS_AGAIN) {
            tape->walk = WALK_PAUSED;
            return STATUS_AGAIN;
        }
        tape->walk = WALK_OVER;
        if (status != STATUS_OK) {
            error.status = status; // a node may have left no sentence
            return tape_stick(tape, &error);
        }
        tape->cursor--;
        first = true;
        tape_tick(tape);
        if (tape->error.status != STATUS_OK)
            return tape->error.status;
    }
    return STATUS_OK;
}

enum status tape_walk(struct tape *tape)
{
    if (tape->error.status != STATUS_OK)
        return tape->error.status;
    if (tape->mode != TAPE_TRAIN || tape->walk != WALK_NONE) {
        tape_fail(tape, STATUS_INVALID,
                  tape->mode != TAPE_TRAIN ? "a walk of a tape that records nothing"
                                           : "a second walk of one step");
        return tape->error.status;
    }
    tape->walk = WALK_OVER;
    tape->cursor = tape->nodes.used;
    count_readers(tape);
    return walk_on(tape, true);
}

enum status tape_resume(struct tape *tape)
{
    if (tape->error.status != STATUS_OK)
        return tape->error.status;
    if (tape->walk != WALK_PAUSED) {
        tape_fail(tape, STATUS_INVALID, "resumed a tape whose walk does not wait");
        return tape->error.status;
    }
    return walk_on(tape, false);
}

/* ---- seeds ---- */

static enum status check_seed(struct tape *tape, const struct variable *variable,
                              const struct tensor *gradient)
{
    char got[SHAPE_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    if (tape->mode != TAPE_TRAIN || tape->walk != WALK_NONE)
        tape_fail(tape, STATUS_INVALID, "a seed: expected a tape that records and was not walked yet");
    else if (tape_check(tape, variable, "a seed") != STATUS_OK)
        return tape->error.status;
    else if (variable->tensor->dtype == DTYPE_I32)
        tape_fail(tape, STATUS_INVALID, "a seed for a variable of int32, which has no gradient");
    else if (gradient != NULL && !shape_equal(&gradient->shape, &variable->tensor->shape))
        tape_fail(tape, STATUS_INVALID, "a seed of shape %s for a variable of shape %s",
                  shape_text(&gradient->shape, got), shape_text(&variable->tensor->shape, expected));
    else if (gradient != NULL && gradient->dtype != variable->tensor->dtype)
        tape_fail(tape, STATUS_INVALID, "a seed of %s for a variable of %s", dtype_name(gradient->dtype),
                  dtype_name(variable->tensor->dtype));
    return tape->error.status;
}

enum status tape_seed(struct tape *tape, struct variable *variable, const struct tensor *gradient)
{
    if (tape->error.status == STATUS_OK && variable == NULL)
        tape_fail(tape, STATUS_INVALID, "a seed for no variable");
    if (tape->error.status != STATUS_OK || variable == NULL)
        return tape->error.status;
    enum status status = check_seed(tape, variable, gradient);
    if (status != STATUS_OK || !variable->needs_gradient)
        return status;
    struct error error = {0};
    struct tensor ones = {0};
    void *block = NULL;
    if (gradient == NULL) {
        status =
            tensor_new(&ones, tape->arena, variable->tensor->shape, variable->tensor->dtype, "seed", &error);
        if (status == STATUS_OK)
            status = backend_fill(tape->backend, &ones, 1, &error);
        gradient = &ones;
        block = ones.data;
    }
    if (status == STATUS_OK)
        status = contribute(tape, variable, gradient, block, &error);
    return status == STATUS_OK ? STATUS_OK : tape_stick(tape, &error);
}

enum status tape_backward(struct tape *tape, struct variable *loss)
{
    char text[SHAPE_TEXT_BYTES];
    if (tape->error.status == STATUS_OK && loss != NULL && loss->tensor->shape.rank != 0)
        tape_fail(tape, STATUS_INVALID, "a loss of shape %s, expected a scalar",
                  shape_text(&loss->tensor->shape, text));
    enum status status = tape_seed(tape, loss, NULL);
    return status == STATUS_OK ? tape_walk(tape) : status;
}
