/* Turns environment.h's calls into requests to a child in Python that has the environments. The thread that
 * owns the environments. */
#include "worker/environment/python_environments.h"

#include "worker/environment/environment_description.h"
#include "worker/environment/environment_spec.h"
#include "worker/python/python_child.h"

#include <stdlib.h>
#include <string.h>

enum { RESET = 1, STEP = 2, RENDER = 3 };

struct python {
    struct python_child *child;
    struct error failure; /* of the newest call that failed */
    struct environment_description description;
};

/* ---- opening and closing ---- */

static void python_close(void *self)
{
    struct python *p = self;
    python_child_close(p->child);
    environment_description_fini(&p->description);
    free(p);
}

static enum status greet(struct python *p, const struct python_environments_config *config,
                         struct error *error)
{
    const size_t bytes = strlen(config->job);
    const uint32_t head[3] = {config->count, (uint32_t)config->rendering, (uint32_t)bytes};
    enum status status = python_child_append(p->child, head, sizeof head, error);
    if (status == STATUS_OK)
        status = python_child_append(p->child, config->job, bytes, error);
    if (status == STATUS_OK)
        status = python_child_ask(p->child, error);
    if (status != STATUS_OK)
        return status;
    struct error why;
    size_t size;
    const char *text = python_child_answer(p->child, &size);
    status = environment_description_read(&p->description, text, size, &why);
    return status == STATUS_OK
               ? status
               : error_set(error, status, "Python's description of the environment: %.400s", why.text);
}

enum status python_environments_open(void **self, const struct environment_spec **spec, const char **name,
                                     const struct python_environments_config *config, struct error *error)
{
    struct python *p = calloc(1, sizeof *p);
    *self = NULL;
    if (p == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for environments in Python");
    enum status status = python_child_open(&p->child, config->interpreter, "command_environments.py",
                                           "step environments", error);
    if (status == STATUS_OK)
        status = greet(p, config, error);
    if (status != STATUS_OK) {
        python_close(p);
        return status;
    }
    *self = p;
    *spec = &p->description.spec;
    *name = p->description.name;
    return STATUS_OK;
}

/* ---- requests ---- */

const struct error *python_environments_failure(const void *self)
{
    const struct python *p = self;
    return &p->failure;
}

/* What a call of environment.h's returns. Its sentence is python_environments_failure's. */
static int outcome(struct python *p, enum status status, const struct error *why)
{
    if (status != STATUS_OK)
        p->failure = *why;
    return status != STATUS_OK;
}

/* Begins a request for n environments. */
static enum status begin(struct python *p, uint32_t kind, uint32_t n, const uint32_t *which,
                         struct error *error)
{
    python_child_begin(p->child);
    enum status status = python_child_append(p->child, (uint32_t[2]){kind, n}, 2 * sizeof(uint32_t), error);
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++)
        status = python_child_append(p->child, (uint32_t[1]){environment_rows_at(which, i)}, sizeof(uint32_t),
                                     error);
    return status;
}

/* Copies n environments' rows from the place `at` of the answer to a buffer, which may be NULL. Returns the
 * place behind them. */
static const char *scatter(const struct python *p, const char *at, void *buffer, size_t row_bytes, uint32_t n,
                           const uint32_t *which)
{
    const size_t bytes = p->description.spec.agents * row_bytes;
    for (uint32_t i = 0; i < n && buffer != NULL; i++)
        memcpy((char *)buffer + environment_rows_at(which, i) * bytes, at + i * bytes, bytes);
    return buffer != NULL ? at + n * bytes : at;
}

static enum status take_rows(struct python *p, const struct environment_buffers *buffers, bool stepped,
                             uint32_t n, const uint32_t *which, struct error *error)
{
    const struct environment_spec *spec = &p->description.spec;
    const size_t observation = environment_space_bytes(&spec->observation),
                 mask = spec->has_mask != 0 ? environment_choices(spec) : 0,
                 metrics = spec->metric_count * sizeof *buffers->metrics,
                 row = observation + mask + (stepped ? sizeof(float) + 1 + metrics : 0);
    const enum status status = python_child_ask(p->child, error);
    if (status != STATUS_OK)
        return status;
    size_t size;
    const char *at = python_child_answer(p->child, &size);
    if (size != (size_t)n * spec->agents * row)
        return error_set(error, STATUS_CORRUPT, "Python answers with %zu bytes: expected %zu", size,
                         (size_t)n * spec->agents * row);
    at = scatter(p, at, buffers->observation, observation, n, which);
    at = scatter(p, at, buffers->mask, mask, n, which);
    if (!stepped)
        return STATUS_OK;
    at = scatter(p, at, buffers->reward, sizeof *buffers->reward, n, which);
    at = scatter(p, at, buffers->flags, sizeof *buffers->flags, n, which);
    scatter(p, at, buffers->metrics, metrics, n, which);
    return STATUS_OK;
}

static int python_reset(void *self, const struct environment_buffers *buffers, uint32_t n,
                        const uint32_t *which, const struct environment_seed *seeds,
                        char error[ENVIRONMENT_ERROR_BYTES])
{
    struct python *p = self;
    struct error why;
    enum status status = begin(p, RESET, n, which, &why);
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++)
        status = python_child_append(p->child, (uint32_t[2]){seeds[i].episode, seeds[i].step},
                                     2 * sizeof(uint32_t), &why);
    if (status == STATUS_OK)
        status = take_rows(p, buffers, false, n, which, &why);
    (void)error;
    return outcome(p, status, &why);
}

static int python_step(void *self, const struct environment_buffers *buffers, uint32_t n,
                       const uint32_t *which, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct python *p = self;
    struct error why;
    const size_t bytes = p->description.spec.agents * environment_space_bytes(&p->description.spec.action);
    enum status status = begin(p, STEP, n, which, &why);
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++)
        status = python_child_append(
            p->child, (const char *)buffers->action + environment_rows_at(which, i) * bytes, bytes, &why);
    if (status == STATUS_OK)
        status = take_rows(p, buffers, true, n, which, &why);
    (void)error;
    return outcome(p, status, &why);
}

static size_t python_render(void *self, uint32_t index, int kind, uint32_t *width, uint32_t *height,
                            void *out, size_t capacity)
{
    struct python *p = self;
    struct error why;
    (void)kind; /* the environments were made for one */
    enum { HEAD = 2 * sizeof(uint32_t) };
    enum status status = begin(p, RENDER, 1, &index, &why);
    if (status == STATUS_OK)
        status = python_child_ask(p->child, &why);
    if (outcome(p, status, &why) != 0)
        return 0;
    size_t size;
    const char *answer = python_child_answer(p->child, &size);
    if (size <= HEAD)
        return 0;
    memcpy(width, answer, sizeof *width);
    memcpy(height, answer + sizeof *width, sizeof *height);
    const size_t bytes = size - HEAD;
    if (bytes <= capacity)
        memcpy(out, answer + HEAD, bytes);
    return bytes;
}

/* Nothing opens by a name: environments_config.opened is an instance. */
const struct environment_plugin python_environments_plugin = {.version = ENVIRONMENT_VERSION,
                                                              .size = sizeof python_environments_plugin,
                                                              .close = python_close,
                                                              .reset = python_reset,
                                                              .step = python_step,
                                                              .render = python_render};
