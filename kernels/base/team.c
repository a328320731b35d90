/* Runs a team's threads. The mutex guards the round; an atomic counter gives out the pieces.
 *
 * A thread joins a round only while the round is open, so that the caller never waits for a thread that is
 * still asleep when the last piece is taken. */
#include "kernels/base/team.h"

#include "kernels/base/thread.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEAM_SPINS = 2000 }; // some 30 microseconds

struct team {
    pthread_mutex_t mutex;
    pthread_cond_t begun; // a round, or the end
    uint32_t pieces;
    team_work *work;
    void *context;
    bool open, ends;
    atomic_uint round;   // changes when a round opens, and at the end
    atomic_uint next;    // the first piece that nobody has taken
    atomic_uint at_work; // threads that have joined the round and not left it
    uint32_t helpers;
    pthread_t thread[];
};

static void take_pieces(struct team *team)
{
    for (uint32_t piece; (piece = atomic_fetch_add(&team->next, 1)) < team->pieces;)
        team->work(team->context, piece);
}

/* Returns with the mutex locked, and a round that is not `seen`. */
static void await_round(struct team *team, uint32_t seen)
{
    for (int i = 0; i < TEAM_SPINS && atomic_load(&team->round) == seen; i++)
        _mm_pause();
    pthread_mutex_lock(&team->mutex);
    while (atomic_load(&team->round) == seen)
        pthread_cond_wait(&team->begun, &team->mutex);
}

static void *help(void *arg)
{
    struct team *team = arg;
    uint32_t seen = 0;
    for (bool ends = false; !ends;) {
        await_round(team, seen);
        seen = atomic_load(&team->round);
        const bool joins = team->open;
        ends = team->ends;
        if (joins)
            atomic_fetch_add(&team->at_work, 1);
        pthread_mutex_unlock(&team->mutex);
        if (joins)
            take_pieces(team);
        if (joins)
            atomic_fetch_sub(&team->at_work, 1);
    }
    return NULL;
}

static void begin_round(struct team *team, bool ends)
{
    pthread_mutex_lock(&team->mutex);
    team->open = !ends;
    team->ends = ends;
    atomic_store(&team->next, 0);
    atomic_fetch_add(&team->round, 1);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->mutex);
}

static void end_round(struct team *team)
{
    pthread_mutex_lock(&team->mutex);
    team->open = false;
    pthread_mutex_unlock(&team->mutex);
    while (atomic_load(&team->at_work) > 0)
        sched_yield();
}

void team_run(struct team *team, uint32_t pieces, team_work *work, void *context)
{
    for (uint32_t piece = 0; team->helpers == 0 && piece < pieces; piece++)
        work(context, piece);
    if (team->helpers == 0)
        return;
    team->pieces = pieces;
    team->work = work;
    team->context = context;
    begin_round(team, false);
    take_pieces(team);
    end_round(team);
}

static enum status start_helpers(struct team *team, uint32_t helpers, struct error *error)
{
    enum status status = STATUS_OK;
    char what[64];
    while (status == STATUS_OK && team->helpers < helpers) {
        snprintf(what, sizeof what, "thread %u of %u that compute", team->helpers + 2, helpers + 1);
        status = thread_start(&team->thread[team->helpers], help, team, what, error);
        team->helpers += status == STATUS_OK;
    }
    return status;
}

enum status team_new(struct team **out, uint32_t threads, struct error *error)
{
    const uint32_t helpers = threads > 1 ? threads - 1 : 0;
    struct team *team = calloc(1, sizeof *team + helpers * sizeof *team->thread);
    if (team == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a team of %u threads", threads);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->begun, NULL);
    const enum status status = start_helpers(team, helpers, error);
    if (status == STATUS_OK)
        *out = team;
    else
        team_free(team);
    return status;
}

void team_free(struct team *team)
{
    if (team == NULL)
        return;
    begin_round(team, true);
    for (uint32_t i = 0; i < team->helpers; i++)
        pthread_join(team->thread[i], NULL);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->mutex);
    free(team);
}
