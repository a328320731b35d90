/* The tape's life: making, beginning, failing, ending; and its leaves. tape_internal.h has the design. */
#include "kernels/params/gradients.h"
#include "kernels/tape/tape_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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
    pool_init(&tape->variables, sizeof(struct variable));
    pool_init(&tape->nodes, sizeof(struct node));
    tape->step = 1;
    *out = tape;
    return STATUS_OK;
}

void node_release(struct node *node)
{
    tape_node_release *release = node->release;
    node->release = NULL;
    if (release != NULL)
        release(node->context);
}

/* Releases everything that the step holds. Nodes are released in reverse order of recording, as in a walk. */
static void end_step(struct tape *tape)
{
    for (uint32_t i = tape->nodes.used; i-- > 0;)
        node_release(pool_at(&tape->nodes, i));
    arena_reset(tape->arena);
    pool_clear(&tape->variables);
    pool_clear(&tape->nodes);
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

enum status tape_finish(struct tape *tape, struct error *error)
{
    enum status status = tape_status(tape, error);
    end_step(tape);
    return status;
}

/* ---- failures ---- */

enum status tape_status(const struct tape *tape, struct error *error)
{
    if (tape->error.status != STATUS_OK && error != NULL)
        *error = tape->error;
    return tape->error.status;
}

enum status tape_stick(struct tape *tape, const struct error *error)
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

enum status tape_check(struct tape *tape, const struct variable *variable, const char *by)
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

void tape_tick(struct tape *tape)
{
    if (tape->progress != NULL)
        tape->progress(tape->progress_context);
}

/* ---- leaves ---- */

struct variable *tape_variable(struct tape *tape, enum source source, const char *label)
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
