/* The object of environments.h, and the checks of its rows. Only environments*.c include this. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENTS_INTERNAL_H
#define WORKER_ENVIRONMENT_ENVIRONMENTS_INTERNAL_H

#include "worker/environment/environments.h"

struct environments {
    struct environments_config config;
    const struct environment_spec *spec;
    void *self; /* the plug-in's instance */
    struct environment_buffers buffers;
    void *own_observations;         /* buffers.observation; NULL: that is the caller's */
    void *action;                   /* buffers.action */
    size_t elements, action_size;   /* of one row's observation; of its action */
    size_t observation_bytes;       /* of one row */
    size_t choices;                 /* bytes of one row's mask; 0: has none */
    uint32_t *steps;                /* (count) since the environment's reset */
    struct environment_seed *seeds; /* (count) of one reset */
};

static inline uint32_t environments_at(const uint32_t *which, uint32_t i)
{
    return which != NULL ? which[i] : i;
}

/* Fails with "NAME: environment 7: SENTENCE"; of several agents, "NAME: environment 7, agent 1: …". */
enum status environments_fail(const struct environments *environments, uint32_t row, enum status status,
                              struct error *error, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* ---- environments_check.c: STATUS_CORRUPT, but for actions STATUS_INVALID ---- */

/* Actions within their choices or bounds, those bounds rounded to float32. */
enum status environments_check_actions(const struct environments *environments, uint32_t n,
                                       const uint32_t *which, struct error *error);

/* Flags that environment.h knows, together; somebody present. */
enum status environments_check_flags(const struct environments *environments, uint32_t n,
                                     const uint32_t *which, struct error *error);

/* Finite rewards, and finite metrics of rows that have ended. */
enum status environments_check_step(const struct environments *environments, uint32_t n,
                                    const uint32_t *which, struct error *error);

/* Finite observations, masks that leave a choice. */
enum status environments_check_state(const struct environments *environments, uint32_t n,
                                     const uint32_t *which, struct error *error);

#endif
