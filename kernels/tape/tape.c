/* The tape: makes variables and nodes, records them, and walks back over them for the gradient. Operations by
 * name are tape_ops.c's.
 *
 * Memory. The arena counts the owners of a block: variables, saved tensors, gradients. A reshape's output is
 * its input's memory, and the two input gradients of an add may both be its output's. Memory outside the
 * arena (parameters, constants, seeds, outputs of higher layers) is never released, and nothing is added into
 * it. Variables and nodes come from pools that only grow: a pointer to one holds for the whole step, and a
 * series of equal steps allocates nothing.
 *
 * Recording. In TAPE_TRAIN an operation is recorded only if a gradient has to flow through it. Otherwise
 * nothing is recorded or saved.
 *
 * Gradients. A variable's first gradient is kept as it came. A later one is added into it if its block has no
 * other owner, else into the arriving one if that has none, else both into a new tensor. A parameter's first
 * gradient is computed straight into its entry of the gradient slab. As the walk passes a node, every value
 * that no earlier node reads goes back to the arena. */
#include "kernels/tape/tape.h"

#include "kernels/params/gradients.h"
#include "kernels/params/params.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pools ---- */

enum { CHUNK_ITEMS = 64 };

struct pool {
    size_t item_bytes;
    uint32_t used, chunk_count;
    void **chunks;
};

static void pool_fini(struct pool *pool)
{
    for (uint32_t i = 0; i < pool->chunk_count; i++)
        free(pool->chunks[i]);
    free(pool->chunks);
}

static bool pool_grow(struct pool *pool)
{
    void **chunks = reallocarray(pool->chunks, pool->chunk_count + 1, sizeof *chunks);
    if (chunks == NULL)
        return false;
    pool->chunks = chunks;
    chunks[pool->chunk_count] = calloc(CHUNK_ITEMS, pool->item_bytes);
    if (chunks[pool->chunk_count] == NULL)
        return false;
    pool->chunk_count++;
    return true;
}

static void *pool_at(const struct pool *pool, uint32_t index)
{
    return (char *)pool->chunks[index / CHUNK_ITEMS] + index % CHUNK_ITEMS * pool->item_bytes;
}

/* Zeroed. NULL: no memory. */
static void *pool_take(struct pool *pool)
{
    if (pool->used == pool->chunk_count * CHUNK_ITEMS && !pool_grow(pool))
        return NULL;
    return memset(pool_at(pool, pool->used++), 0, pool->item_bytes);
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
    bool reads;        // values are on their way to the host
    double *loss;      // where tape_finish writes the loss; NULL: nowhere
    double loss_found; // the loss, after a wait

    /* The walk. While it is paused, nodes[cursor - 1] waits, with these arguments. */
    enum walk_state walk;
    uint32_t cursor;
    const struct tensor *dout[OP_OUTPUTS_MAX];
    struct tensor din[OP_INPUTS_MAX];
    struct tensor *direct[OP_INPUTS_MAX]; // the slab's part that din writes straight into
};

/* ---- the life of a tape ---- */

enum status tape_new(struct tape **out, struct backend *backend, struct error *error)
{
    return tape_new_in(out, backend, &backend->source, error);
}

enum status tape_new_in(struct tape **out, struct backend *backend, const struct arena_source *source,
                        struct error *error)
{
    struct tape *tape = calloc(1, sizeof *tape);
    if (tape == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a tape");
    tape->backend = backend;
    enum status status = arena_new(&tape->arena, source, error);
    if (status != STATUS_OK) {
        free(tape);
        return status;
    }
    tape->variables.item_bytes = sizeof(struct variable);
    tape->nodes.item_bytes = sizeof(struct node);
    tape->step = 1;
    *out = tape;
    return STATUS_OK;
}

/* Calls the release function of a node of a higher layer, once. */
static void node_release(struct node *node)
{
    tape_node_release *release = node->release;
    node->release = NULL;
    if (release != NULL)
        release(node->context);
}

/* Releases everything that the step holds. Nodes are released in reverse order of recording, as in a walk. */
static void end_step(struct tape *tape)
{
    tape_wait(tape); // what is read later may be gone after the step
    tape->loss = NULL;
    for (uint32_t i = tape->nodes.used; i-- > 0;)
        node_release(pool_at(&tape->nodes, i));
    arena_reset(tape->arena);
    tape->variables.used = 0;
    tape->nodes.used = 0;
    tape->gradients = NULL;
    tape->walk = WALK_NONE;
    tape->error = (struct error){0};
    tape->step++;
}

void tape_free(struct tape *tape)
{
    if (tape == NULL)
        return;
    end_step(tape);
    pool_fini(&tape->variables);
    pool_fini(&tape->nodes);
    arena_free(tape->arena);
    free(tape);
}

struct backend *tape_backend(const struct tape *tape)
{
    return tape->backend;
}

struct arena *tape_arena(struct tape *tape)
{
    return tape->arena;
}

bool tape_records(const struct tape *tape)
{
    return tape->mode == TAPE_TRAIN;
}

void tape_begin(struct tape *tape, enum tape_mode mode, struct gradients *gradients)
{
    end_step(tape);
    tape->mode = mode;
    tape->gradients = mode == TAPE_TRAIN ? gradients : NULL;
    if (tape->gradients != NULL)
        gradients_begin(tape->gradients);
}

void tape_begin_adding(struct tape *tape, struct gradients *gradients)
{
    end_step(tape);
    tape->mode = TAPE_TRAIN;
    tape->gradients = gradients;
}

/* ---- failures ---- */

enum status tape_status(const struct tape *tape, struct error *error)
{
    if (tape->error.status != STATUS_OK && error != NULL)
        *error = tape->error;
    return tape->error.status;
}

/* Keeps the first failure. Returns the tape's status. */
static enum status tape_stick(struct tape *tape, const struct error *error)
{
    if (tape->error.status == STATUS_OK)
        tape->error = *error;
    return tape->error.status;
}

struct variable *tape_fail(struct tape *tape, enum status status, const char *format, ...)
{
    struct error error = {.status = status};
    va_list list;
    va_start(list, format);
    vsnprintf(error.text, sizeof error.text, format, list);
    va_end(list);
    tape_stick(tape, &error);
    return NULL;
}

/* Checks that the variable belongs to this tape and step, and that its value is there. Otherwise sticks. */
static enum status tape_check(struct tape *tape, const struct variable *variable, const char *by)
{
    if (variable->tape != tape || variable->step != tape->step)
        tape_fail(tape, STATUS_INVALID, "%s: a variable of another tape or of an earlier step", by);
    else if (variable->released)
        tape_fail(tape, STATUS_INVALID,
                  "%s: the value of a variable (%s) that is released already; read it before", by,
                  variable->label != NULL ? variable->label : variable->what);
    return tape->error.status;
}

void tape_on_progress(struct tape *tape, tape_progress *progress, void *context)
{
    tape->progress = progress;
    tape->progress_context = context;
}

static void tape_tick(struct tape *tape)
{
    if (tape->progress != NULL)
        tape->progress(tape->progress_context);
}

/* ---- leaves ---- */

/* A new variable with `label` for messages; NULL, sticking, without memory. */
static struct variable *tape_variable(struct tape *tape, enum source source, const char *label)
{
    struct variable *variable = pool_take(&tape->variables);
    if (variable == NULL)
        return tape_fail(tape, STATUS_NO_MEMORY, "no memory for the tape's variables");
    variable->tape = tape;
    variable->step = tape->step;
    variable->tensor = &variable->own;
    variable->source = source;
    variable->label = label;
    return variable;
}

struct variable *tape_input(struct tape *tape, struct shape shape, enum dtype dtype, const char *name,
                            const void *values)
{
    if (tape->error.status != STATUS_OK)
        return NULL;
    struct variable *variable = tape_variable(tape, SOURCE_INPUT, name);
    if (variable == NULL)
        return NULL;
    struct error error = {0};
    enum dtype inside = dtype == DTYPE_I32 ? DTYPE_I32 : tape->backend->ops->dtype;
    enum status status = tensor_new(&variable->own, tape->arena, shape, inside, name, &error);
    variable->block = variable->own.data;
    if (status == STATUS_OK)
        status = backend_upload(tape->backend, &variable->own, dtype, values, &error);
    if (status == STATUS_OK)
        return variable;
    tape_stick(tape, &error);
    return NULL;
}

struct variable *tape_constant(struct tape *tape, const struct tensor *tensor)
{
    if (tape->error.status != STATUS_OK)
        return NULL;
    struct variable *variable = tape_variable(tape, SOURCE_CONSTANT, tensor->name);
    if (variable != NULL)
        variable->own = *tensor;
    return variable;
}

struct variable *tape_parameter(struct tape *tape, struct parameter *parameter)
{
    if (tape->error.status != STATUS_OK || parameter == NULL)
        return NULL;
    if (parameter->kind == PARAMETER_COUNTER)
        return tape_fail(tape, STATUS_INVALID, "parameter %s is a counter and no tensor", parameter->name);
    const bool trained = parameter->kind == PARAMETER_TRAINED && tape->gradients != NULL;
    if (trained && gradients_params(tape->gradients) != parameter->params)
        return tape_fail(tape, STATUS_INVALID,
                         "parameter %s belongs to other params than the tape's gradients", parameter->name);
    struct variable *variable = tape_variable(tape, SOURCE_PARAMETER, parameter->name);
    if (variable == NULL)
        return NULL;
    variable->tensor = &parameter->tensor;
    variable->parameter = parameter;
    variable->needs_gradient = trained;
    return variable;
}

void tape_want_gradient(struct variable *variable)
{
    if (variable == NULL || variable->tape->error.status != STATUS_OK ||
        tape_check(variable->tape, variable, "a wish for a gradient") != STATUS_OK)
        return;
    if (variable->taken || variable->parameter != NULL || variable->own.dtype == DTYPE_I32) {
        tape_fail(variable->tape, STATUS_INVALID,
                  "the gradient of %s: expected a floating input that no operation has taken yet",
                  variable->label != NULL ? variable->label : "a variable");
        return;
    }
    variable->wants_gradient = true;
    variable->needs_gradient = variable->tape->mode == TAPE_TRAIN;
}

/* One more owner, which never releases. */
bool tape_keep(struct variable *variable)
{
    if (variable->block == NULL)
        return false;
    arena_share(variable->tape->arena, variable->block);
    return true;
}

/* ---- recording ---- */

/* `memory` if a block of the tape's arena begins there; else NULL, for memory that is not the tape's. */
static void *tape_block(const struct tape *tape, void *memory)
{
    return arena_owners(tape->arena, memory) > 0 ? memory : NULL;
}

/* Before anything is recorded. `by` is the operation, for the message. */
static enum status check_recordable(struct tape *tape, const char *by, struct variable *const in[],
                                    uint32_t inputs)
{
    if (tape->error.status != STATUS_OK)
        return tape->error.status;
    if (tape->walk != WALK_NONE) {
        tape_fail(tape, STATUS_INVALID, "%s: the tape was walked already; begin a new step", by);
        return tape->error.status;
    }
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < inputs && status == STATUS_OK; i++)
        if (in[i] != NULL)
            status = tape_check(tape, in[i], by);
    return status;
}

/* A new variable is labelled by the first parameter among the operation's inputs, else by the first labelled
 * input. */
static void label_variable(struct variable *variable, struct variable *const in[], uint32_t inputs)
{
    for (uint32_t i = 0; i < inputs; i++) {
        if (in[i] == NULL || in[i]->parameter == NULL)
            continue;
        variable->label = in[i]->label;
        variable->label_is_own = true;
        return;
    }
    for (uint32_t i = 0; i < inputs; i++) {
        if (in[i] == NULL || in[i]->label == NULL)
            continue;
        variable->label = in[i]->label;
        variable->label_is_own = in[i]->source == SOURCE_INPUT || in[i]->source == SOURCE_CONSTANT;
        return;
    }
}

static enum status make_outputs(struct tape *tape, struct node *node, enum source source)
{
    for (uint32_t i = 0; i < node->outputs; i++) {
        struct variable *variable = tape_variable(tape, source, NULL);
        if (variable == NULL)
            return tape->error.status;
        variable->what = node->name;
        label_variable(variable, node->in, node->inputs);
        node->out[i] = variable;
    }
    return STATUS_OK;
}

/* Marks the inputs, and the outputs by what they need. */
static void connect_node(struct tape *tape, struct node *node)
{
    for (uint32_t i = 0; i < node->inputs; i++) {
        if (node->in[i] == NULL)
            continue;
        node->in[i]->taken = true;
        node->needs_gradient |= tape->mode == TAPE_TRAIN && node->in[i]->needs_gradient &&
                                (node->rule == NULL || (node->rule->in[i].flags & OP_GRADIENT));
    }
    assert(node->outputs <= OP_OUTPUTS_MAX);
    for (uint32_t i = 0; i < node->outputs; i++)
        node->out[i]->needs_gradient = node->needs_gradient;
}

static enum status run_forward(struct tape *tape, struct node *node, const struct tensor *const into[])
{
    struct op_call *call = &node->call;
    struct error error = {0};
    call->arena = tape->arena;
    call->keep = node->needs_gradient;
    for (uint32_t i = 0; i < node->inputs; i++)
        call->in[i] = node->in[i] != NULL ? node->in[i]->tensor : NULL;
    for (uint32_t i = 0; i < node->outputs; i++) {
        call->out[i] = &node->out[i]->own;
        assert(into[i] == NULL || node->rule->out[i].flags & OP_OFFERED);
        if (into[i] != NULL)
            *call->out[i] = *into[i];
    }
    enum status status = op_forward(tape->backend, call, &error);
    if (status != STATUS_OK)
        return tape_stick(tape, &error);
    for (uint32_t i = 0; i < node->outputs; i++)
        if (into[i] == NULL)
            node->out[i]->block = tape_block(tape, node->out[i]->own.data);
    return STATUS_OK;
}

enum status tape_apply(struct tape *tape, enum op op, const struct op_attributes *attributes,
                       struct variable *const in[], struct variable *out[])
{
    static const struct tensor *const nowhere[OP_OUTPUTS_MAX];
    return tape_apply_into(tape, op, attributes, in, nowhere, out);
}

enum status tape_apply_into(struct tape *tape, enum op op, const struct op_attributes *attributes,
                            struct variable *const in[], const struct tensor *const into[],
                            struct variable *out[])
{
    const struct op_rule *rule = op_rule(op);
    const uint32_t outputs = op_outputs(op, attributes);
    memset(out, 0, outputs * sizeof out[0]);
    enum status status = check_recordable(tape, rule->name, in, rule->inputs);
    if (status != STATUS_OK)
        return status;
    struct node *node = pool_take(&tape->nodes);
    if (node == NULL) {
        tape_fail(tape, STATUS_NO_MEMORY, "no memory for the tape's nodes");
        return tape->error.status;
    }
    node->rule = rule;
    node->name = rule->name;
    node->inputs = rule->inputs;
    node->outputs = outputs;
    node->call.op = op;
    node->call.attributes = *attributes;
    memcpy(node->in, in, rule->inputs * sizeof in[0]);
    status = make_outputs(tape, node, SOURCE_OPERATION);
    if (status != STATUS_OK)
        return status;
    connect_node(tape, node);
    status = run_forward(tape, node, into);
    if (status != STATUS_OK)
        return status;
    memcpy(out, node->out, outputs * sizeof out[0]);
    if (!node->needs_gradient)
        tape->nodes.used--; // the last one taken: nothing has to come back through it
    tape_tick(tape);
    return STATUS_OK;
}

/* ---- nodes of a higher layer ---- */

/* The outputs are taken as given; one that is an input's memory shares that block. */
static void take_outputs(struct tape *tape, struct node *node, const struct tape_node *given)
{
    for (uint32_t i = 0; i < node->outputs; i++) {
        struct variable *out = node->out[i];
        out->own = given->out[i];
        for (uint32_t j = 0; j < node->inputs && out->block == NULL; j++)
            if (node->in[j] != NULL && node->in[j]->tensor->data == out->own.data)
                out->block = node->in[j]->block;
        if (out->block != NULL)
            arena_share(tape->arena, out->block);
    }
}

enum status tape_node(struct tape *tape, const struct tape_node *given, struct variable *out[])
{
    memset(out, 0, given->outputs * sizeof out[0]);
    enum status status = check_recordable(tape, given->name, given->in, given->inputs);
    struct node *node = status == STATUS_OK ? pool_take(&tape->nodes) : NULL;
    if (node == NULL) {
        if (status == STATUS_OK)
            tape_fail(tape, STATUS_NO_MEMORY, "no memory for the tape's nodes");
        if (given->release != NULL)
            given->release(given->context);
        return tape->error.status;
    }
    node->name = given->name;
    node->needs_gradient = given->reaches_beyond && tape->mode == TAPE_TRAIN;
    node->inputs = given->inputs;
    node->outputs = given->outputs;
    node->context = given->context;
    node->backward = given->backward;
    node->release = given->release; // from here on the tape's, whatever fails
    memcpy(node->in, given->in, sizeof node->in);
    status = make_outputs(tape, node, SOURCE_NODE);
    if (status != STATUS_OK)
        return status;
    connect_node(tape, node);
    take_outputs(tape, node, given);
    memcpy(out, node->out, node->outputs * sizeof out[0]);
    tape_tick(tape);
    return STATUS_OK;
}

/* ---- reading ---- */

const struct tensor *variable_tensor(const struct variable *variable)
{
    return variable->tensor;
}

bool variable_needs_gradient(const struct variable *variable)
{
    return variable->needs_gradient;
}

const struct tensor *variable_gradient(const struct variable *variable)
{
    return variable->has_gradient ? &variable->gradient : NULL;
}

enum status tape_read_later(struct tape *tape, const struct variable *variable, enum dtype dtype,
                            void *values)
{
    if (tape->error.status != STATUS_OK)
        return tape->error.status;
    if (variable == NULL) {
        tape_fail(tape, STATUS_INVALID, "a read of no variable");
        return tape->error.status;
    }
    if (tape_check(tape, variable, "a read") != STATUS_OK)
        return tape->error.status;
    struct error error = {0};
    tape->reads = true;
    enum status status = backend_download_later(tape->backend, variable->tensor, dtype, values, &error);
    return status == STATUS_OK ? STATUS_OK : tape_stick(tape, &error);
}

/* Releases a variable's value, if it is the tape's. */
static void variable_release_value(struct tape *tape, struct variable *variable)
{
    if (variable->block == NULL || variable->released)
        return;
    arena_release(tape->arena, variable->block);
    variable->block = NULL;
    variable->own.data = NULL; // the address may soon be another tensor's
    variable->released = true;
}

void tape_drop(struct tape *tape, struct variable *variable)
{
    if (tape->mode == TAPE_INFER && variable != NULL && variable->tape == tape &&
        variable->step == tape->step)
        variable_release_value(tape, variable);
}

/* ---- the loss ---- */

/* Names the variable: "the input images", "the output of conv2d of layer1.0.conv1.weight". */
static void fail_not_finite(struct tape *tape, const struct variable *variable, double loss)
{
    const char *label = variable->label != NULL ? variable->label : "no name";
    const char *begin = tape->walk == WALK_NONE
                            ? "the first tensor that holds a NaN or an infinity is"
                            : "of the tensors that are left, the first that holds a NaN or an infinity is";
    if (variable->source == SOURCE_PARAMETER)
        tape_fail(tape, STATUS_INTERNAL, "the loss is %g; %s the parameter %s", loss, begin, label);
    else if (variable->source == SOURCE_INPUT || variable->source == SOURCE_CONSTANT)
        tape_fail(tape, STATUS_INTERNAL, "the loss is %g; %s the input %s", loss, begin, label);
    else
        tape_fail(tape, STATUS_INTERNAL, "the loss is %g; %s the output of %s %s %s", loss, begin,
                  variable->what, variable->label_is_own ? "of" : "after", label);
}

/* After a walk, the values that it has released cannot be looked at. */
static enum status find_not_finite(struct tape *tape, double loss)
{
    struct error error = {0};
    for (uint32_t i = 0; i < tape->variables.used; i++) {
        const struct variable *variable = pool_at(&tape->variables, i);
        size_t index = SIZE_MAX;
        if (variable->tensor->dtype == DTYPE_I32 || variable->released)
            continue;
        if (backend_first_not_finite(tape->backend, variable->tensor, &index, &error) != STATUS_OK)
            return tape_stick(tape, &error);
        if (index == SIZE_MAX)
            continue;
        fail_not_finite(tape, variable, loss);
        break;
    }
    return tape->error.status;
}

/* The loss has come: gives it to the caller, if it is finite. */
static enum status take_loss(struct tape *tape)
{
    double *value = tape->loss;
    tape->loss = NULL;
    if (value != NULL && !isfinite(tape->loss_found))
        return find_not_finite(tape, tape->loss_found);
    if (value != NULL)
        *value = tape->loss_found;
    return STATUS_OK;
}

enum status tape_wait(struct tape *tape)
{
    struct error error = {0};
    const bool waits = tape->reads;
    tape->reads = false;
    if (waits && backend_wait(tape->backend, &error) != STATUS_OK)
        tape_stick(tape, &error);
    return tape->error.status == STATUS_OK ? take_loss(tape) : tape->error.status;
}

enum status tape_read(struct tape *tape, const struct variable *variable, enum dtype dtype, void *values)
{
    const enum status status = tape_read_later(tape, variable, dtype, values);
    return status == STATUS_OK ? tape_wait(tape) : status;
}

enum status tape_loss(struct tape *tape, struct variable *loss, double *value)
{
    if (tape->error.status == STATUS_OK && (tape->mode != TAPE_TRAIN || tape->walk != WALK_NONE))
        tape_fail(tape, STATUS_INVALID, "the loss is asked for before the walk of a tape that records");
    if (tape->error.status == STATUS_OK && loss != NULL && loss->tensor->shape.rank != 0)
        tape_fail(tape, STATUS_INVALID, "the loss is no scalar");
    const enum status status = tape_read_later(tape, loss, DTYPE_F64, &tape->loss_found);
    if (status != STATUS_OK)
        return status;
    tape->loss = value;
    return tape->backend->ops->host ? tape_wait(tape) : STATUS_OK;
}

enum status tape_finish(struct tape *tape, struct error *error)
{
    tape_wait(tape);
    const enum status status = tape_status(tape, error);
    end_step(tape);
    return status;
}

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
        status = backend_accumulate(tape->backend, part, gradient, error);
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
    enum status status = backend_accumulate(tape->backend, &variable->gradient, &arriving, error);
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

/* ---- values that no later node reads ---- */

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
        status = backend_accumulate(tape->backend, part, gradient, error);
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
