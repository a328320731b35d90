/* An environment for coalesced: what a plug-in exports, and what it may rely on. C11 or C++11. Copy this file
 * beside your source; it includes nothing else of coalesced.
 *
 * A plug-in is a shared object with one function, environment_plugin(). It returns a table of functions, and
 * the names of the environments that they make. coalesced opens an instance: `count` environments of one
 * name, which are stepped together. Several instances may live in one process; they share nothing. One thread
 * at a time uses an instance, and not always the same one.
 *
 *     open -> reset, with every environment -> step, step, reset of those that have ended, step, … -> close
 *
 * Rows. An environment with A agents has A rows in every buffer: row = environment * A + agent. The buffers
 * are dense, belong to the caller, and stay where they are from the first reset until close. `which` names
 * environments, ascending, each once; NULL: all of them, and n is count. A function touches the rows of the
 * environments that it was called for, and no other.
 *
 * An end. A step that ends an episode writes the last observation of that episode, so that its value can be
 * estimated at a truncation. The environment then waits for reset: nothing resets itself within a step
 * (Gymnasium's AutoresetMode.DISABLED).
 *
 * Agents. One that ends while others go on waits for them: the caller resets the environment when each has
 * ended or is absent. From the next step on its row is ABSENT, and its action is not read. It may come back
 * before the reset, with a row that is not ABSENT, a step later at the earliest: an episode of its own begins
 * there. No row is ABSENT and ends in one step. An agent that begins anew at once sets LIFE_LOST. RESTARTED
 * begins all agents anew: it stands in each row that is not ABSENT.
 *
 * The same bits. A reset's state depends on its seed and on nothing else. After it, the same actions give the
 * same rows, in whichever instance, row and company. coalesced try checks this, and all else that stands
 * here.
 *
 * Denormal numbers count as 0, as operands and as results (FTZ and DAZ of MXCSR): a plug-in's functions are
 * called so, and its threads inherit it. Only numbers below 2.2e-308 in double, and 1.2e-38 in float, differ.
 *
 * Errors. A function that returns int returns 0, or not 0 with a sentence in `error`, ended by a zero; the
 * job then ends with the sentence. After open no function should allocate. Strings are UTF-8. */
#ifndef COALESCED_ENVIRONMENT_H
#define COALESCED_ENVIRONMENT_H

#include <stddef.h>
#include <stdint.h>

/* Version 2 added parts of an observation. A plug-in that was built for version 1 needs no change. */
#define ENVIRONMENT_VERSION 2
#define ENVIRONMENT_ERROR_BYTES 400

/* The type of a space's elements. */
enum { ENVIRONMENT_U8 = 1, ENVIRONMENT_I32 = 2, ENVIRONMENT_F32 = 3 };

/* A row's flags after a step, added up. */
enum {
    ENVIRONMENT_TERMINATED = 1, /* the episode has ended in a state that has no future: its value is 0 */
    ENVIRONMENT_TRUNCATED = 2,  /* the episode was cut: the last observation's state had a future */
    ENVIRONMENT_RESTARTED = 4,  /* with one of the above: it could not help resetting itself. The observation
                                   is the next episode's first; the last one is lost */
    ENVIRONMENT_FAILED = 8,     /* it broke: the episode so far is not learned from, and it is reset */
    ENVIRONMENT_ABSENT = 16,    /* this agent is not in the environment at present: its row says nothing */
    ENVIRONMENT_LIFE_LOST = 32  /* the episode goes on, but what is learned from ends here, in a state whose
                                   value is 0: one of several lives is lost. The observation is the next
                                   life's first. Logs count the whole episode */
};

/* What an environment cannot do; environment_spec.limits, added up. */
enum {
    ENVIRONMENT_SINGLETON = 1,  /* there can be one instance in a process, of one environment */
    ENVIRONMENT_CANNOT_SEED = 2 /* two resets with one seed may differ: such a job cannot be repeated, and a
                                   run that resumes has other numbers */
};

/* What a reset draws its first state from. Equal seeds are equal in all four. */
struct environment_seed {
    uint64_t job;
    uint32_t environment; /* its number in the job, from 0 */
    uint32_t episode;     /* the job's episode, or the environment's */
    uint32_t step;        /* within it */
};

/* The seed as one number, for a generator that takes one. Two seeds that differ give different numbers but
 * for chance (2^-64). */
static inline uint64_t environment_seed_mix(struct environment_seed seed)
{
    const uint64_t words[3] = {seed.job, (uint64_t)seed.environment << 32 | seed.episode, seed.step};
    uint64_t mixed = 0;
    for (int i = 0; i < 3; i++) { /* David Stafford's finalizer, variant 13, as in SplitMix64 */
        mixed = (mixed ^ words[i]) + 0x9e3779b97f4a7c15u;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
        mixed ^= mixed >> 31;
    }
    return mixed;
}

/* What one row holds: an observation or an action. Rank 0 is one element.
 *
 * An observation is ENVIRONMENT_F32 or ENVIRONMENT_U8, of rank 3 at most. U8 of rank 3 is an image: height,
 * width, channels. `choices` is NULL; `low` and `high` are NULL or bounds of each element, which may be
 * infinite.
 *
 * An action with `choices` is ENVIRONMENT_I32 and has rank 0 or 1: element e is 0 … choices[e] - 1
 * (Gymnasium's Discrete and MultiDiscrete). An action without is ENVIRONMENT_F32 of rank 0 or 1: element e is
 * in low[e] … high[e], both finite (Box). The caller sees to the bounds. */
struct environment_space {
    uint32_t dtype, rank, shape[3];
    const double *low, *high;
    const uint32_t *choices;
};

/* One of the things that an observation is made of, such as an image or a vector. U8 has rank 3. */
struct environment_part {
    const char *name;               /* all different; 1 … 63 bytes of UTF-8 */
    struct environment_space space; /* as of an observation */
};

struct environment_spec {
    uint32_t size;              /* sizeof(struct environment_spec) */
    uint32_t limits;            /* of the enum above */
    uint32_t agents;            /* rows of an environment, at least 1 */
    uint32_t steps_max;         /* the caller truncates an episode after so many steps; 0: never */
    uint32_t has_mask;          /* 1: it says which choices are allowed; needs `choices` */
    uint32_t metric_count;      /* numbers that an ended row reports, at most 64 */
    const char *const *metrics; /* (metric_count) their names, all different: "is_success", …; 1 … 63 bytes */
    struct environment_space observation, action;

    /* ---- since version 2 ----
     * An observation of several things has rank 1. Its row holds the parts one after another, each at the
     * next multiple of 4 bytes; bytes between them are 0. Where all parts are ENVIRONMENT_F32, the
     * observation is, too, and shape[0] counts its elements; else it is ENVIRONMENT_U8, and shape[0] counts
     * the bytes of the row, itself a multiple of 4. Its own bounds are NULL: the parts have them. */
    uint32_t part_count; /* at most 256; 0: it is one thing */
    const struct environment_part *parts;
};

struct environment_buffers {
    void *observation;  /* (rows, shape…)  out: reset, step */
    const void *action; /* (rows, shape…)  in: step */
    float *reward;      /* (rows)          out: step; of this step */
    uint8_t *flags;     /* (rows)          out: step; of the enum above */
    uint8_t *mask;      /* (rows, sum of choices), choice by choice, 1: allowed; at least one of each element.
                           out: reset, step. NULL without has_mask */
    float *metrics;     /* (rows, metric_count)  out: step, where a row ends, also by the caller's cut at
                           steps_max. NULL without metrics */
};

/* What environment_render draws. */
enum {
    ENVIRONMENT_TEXT = 1, /* UTF-8 with line ends; width and height are not used */
    ENVIRONMENT_RGB = 2   /* (height, width, 3) bytes */
};

struct environment_plugin {
    uint32_t version;         /* ENVIRONMENT_VERSION */
    uint32_t size;            /* sizeof(struct environment_plugin) */
    const char *const *names; /* of its environments; the last is NULL */

    /* Makes `count` environments of `name`, not reset yet. `options`: the job's JSON object, "{}" without; an
     * option that is not known is an error. *spec lives as long as *out. */
    int (*open)(void **out, const struct environment_spec **spec, const char *name, const char *options,
                uint32_t count, char error[ENVIRONMENT_ERROR_BYTES]);
    void (*close)(void *self);

    /* Puts n environments into the first states that seeds[0 … n - 1] give. */
    int (*reset)(void *self, const struct environment_buffers *buffers, uint32_t n, const uint32_t *which,
                 const struct environment_seed *seeds, char error[ENVIRONMENT_ERROR_BYTES]);

    /* Steps n environments, none of which waits for reset. */
    int (*step)(void *self, const struct environment_buffers *buffers, uint32_t n, const uint32_t *which,
                char error[ENVIRONMENT_ERROR_BYTES]);

    /* ---- any of what follows may be NULL ---- */

    /* A picture of environment `which` of enum `kind` in `out`. Returns its bytes; 0: it cannot. More than
     * `capacity`: nothing is written, come back with so many. */
    size_t (*render)(void *self, uint32_t which, int kind, uint32_t *width, uint32_t *height, void *out,
                     size_t capacity);

    /* All of the state of environment `which`, by which a run is resumed to the bit. Returns its bytes, as
     * render does. load: into an environment of any instance of the same name and options; it writes the
     * observation and the mask. Without save and load, each resume, and each death of a process, ends the
     * episodes that are under way: what they earned is lost, new ones begin, and the run's numbers are not
     * those of a run without it. That holds for rollouts that go on from the one before (PPO and A2C, and
     * /rollout/begin "continue"); the others begin with a reset. */
    size_t (*save)(void *self, uint32_t which, void *out, size_t capacity);
    int (*load)(void *self, const struct environment_buffers *buffers, uint32_t which, const void *state,
                size_t size, char error[ENVIRONMENT_ERROR_BYTES]);
};

#ifdef __cplusplus
extern "C"
#endif
    const struct environment_plugin *
    environment_plugin(void);

#endif
