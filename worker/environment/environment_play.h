/* Plays a few environments, the subjects, with random actions, and records all that they give. Seeds and
 * actions follow from the play's seed, the subject's number and its steps. So every play of the same subjects
 * must give the same record, wherever they are placed. The other environments of an instance, the neighbours,
 * have numbers of their own. Part of environment_contract.h. One thread. */
#ifndef WORKER_ENVIRONMENT_ENVIRONMENT_PLAY_H
#define WORKER_ENVIRONMENT_ENVIRONMENT_PLAY_H

#include "worker/environment/environment_probe.h"

enum { PLAY_SUBJECTS_MAX = 5, PLAY_NEIGHBOURS_FIRST = 1000 };

/* What one row gave in one step, and at the reset after it if there was one. The integers are hashes. */
struct play_record {
    uint64_t observation, mask, metrics;
    uint64_t first; /* observation and mask after the reset */
    float reward;
    uint8_t flags;
};

struct play_trace {
    uint32_t subjects, steps, agents;
    struct play_record *records; /* (subjects, steps + 1, agents); step 0 is the first reset */
    uint64_t ended;              /* episodes that the environments ended */
    uint64_t failed;             /* those among them that ended with ENVIRONMENT_FAILED */
    uint64_t truncated;          /* episodes that the caller ended, at steps_max */
};

/* Errors: STATUS_NO_MEMORY. play_trace_free follows after either result. */
enum status play_trace_new(struct play_trace *trace, uint32_t subjects, uint32_t steps, uint32_t agents,
                           struct error *error);
void play_trace_free(struct play_trace *trace);

/* The first place where two traces differ: STATUS_CORRUPT and a sentence without the environment's name. */
enum status play_compare(const struct play_trace *expected, const struct play_trace *found,
                         struct error *error);

/* Who plays where. */
struct play_cast {
    uint32_t places[PLAY_SUBJECTS_MAX]; /* (subjects) environments of the instance */
    uint32_t subjects;
    uint32_t first;      /* the number of the subject at places[0]; the others follow */
    uint32_t generation; /* the neighbours of two generations differ */
    bool in_turns;       /* a tick steps some of the environments, drawn, and resets some neighbours */
};

struct play {
    struct probe *probe;
    struct play_trace *trace;
    struct play_cast cast;
    uint64_t seed;
    uint32_t tick;
    struct play_seat {
        uint32_t number; /* the subject's, or the neighbour's from PLAY_NEIGHBOURS_FIRST */
        uint32_t step;   /* steps so far */
        uint32_t episode, episode_step;
    } * seats;       /* (probe's count) */
    uint32_t *which; /* (count) of one call */
    struct environment_seed *seeds;
};

/* Resets all environments of the probe, for steps that go into `trace`. play_free follows after either
 * result. Errors as the probe's; STATUS_NO_MEMORY. */
enum status play_begin(struct play *play, struct probe *probe, struct play_trace *trace, uint64_t seed,
                       const struct play_cast *cast, struct error *error);
void play_free(struct play *play);

/* Whether every subject has `steps` steps. */
bool play_has(const struct play *play, uint32_t steps);

/* One step of all environments, or of those whose turn it is, and the resets that follow. */
enum status play_tick(struct play *play, struct error *error);

/* Draws the next actions of an environment into the probe's buffers, among those that its mask allows. */
void play_draw_actions(const struct play *play, uint32_t environment);

#endif
