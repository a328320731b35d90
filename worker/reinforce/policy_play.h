/* The command `coalesced play`: a policy plays one episode after the other, for people who watch. */
#ifndef WORKER_REINFORCE_POLICY_PLAY_H
#define WORKER_REINFORCE_POLICY_PLAY_H

#include "kernels/base/status.h"
#include "worker/control.h"
#include "worker/job/job.h"

#include <stdbool.h>
#include <stddef.h>

/* A picture of the environment: before the first step of an episode, and after each. */
struct play_frame {
    uint32_t episode, step; /* from 1; from 0 */
    double reward;          /* of the episode, so far */
    uint32_t width, height; /* of an RGB picture: pixels (height, width, 3); 0 of a text */
    const void *bytes;      /* valid during the call */
    size_t size;
};

struct play_settings {
    uint32_t episodes;
    bool sampled; /* actions are drawn as in training; else the most probable ones are taken */
    int picture;  /* of environment.h: ENVIRONMENT_TEXT or ENVIRONMENT_RGB; 0: none is drawn */
    /* Called with each frame, if there are pictures; an error ends the play. */
    enum status (*show)(void *context, const struct play_frame *frame, struct error *error);
    /* Called after each episode: its number from 1, its reward, its steps, its metrics (of several agents the
     * means). */
    void (*over)(void *context, uint32_t episode, double reward, uint32_t steps,
                 const struct control_metrics *metrics);
    void *context;
};

/* Plays episodes 1, 2, …: those that policy_evaluate plays. Errors as policy_evaluate; STATUS_UNAVAILABLE:
 * the environment draws no such picture; those of `show`. */
enum status policy_play(const char *checkpoint, const struct job *job, const struct play_settings *settings,
                        struct error *error);

#endif
