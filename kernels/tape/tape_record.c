/* Recording: one call of a backend, or one node of a higher layer, becomes an entry of the tape.
 *
 * In TAPE_TRAIN an operation is recorded only if a gradient has to flow through it. Otherwise nothing is
 * recorded or saved. */
#include "kernels/tape/tape_internal.h"

#include <assert.h>
#include <string.h>

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

static enum status run_forward(struct tape *tape, struct node *node)
{
    struct op_call *call = &node->call;
    struct error error = {0};
    call->arena = tape->arena;
    call->keep = node->needs_gradient;
    for (uint32_t i = 0; i < node->inputs; i++)
        call->in[i] = node->in[i] != NULL ? node->in[i]->tensor : NULL;
    for (uint32_t i = 0; i < node->outputs; i++)
        call->out[i] = &node->out[i]->own;
    enum status status = op_forward(tape->backend, call, &error);
    if (status != STATUS_OK)
        return tape_stick(tape, &error);
    for (uint32_t i = 0; i < node->outputs; i++)
        node->out[i]->block = tape_block(tape, node->out[i]->own.data);
    return STATUS_OK;
}

enum status tape_apply(struct tape *tape, enum op op, const struct op_attributes *attributes,
                       struct variable *const in[], struct variable *out[])
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
    status = run_forward(tape, node);
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
