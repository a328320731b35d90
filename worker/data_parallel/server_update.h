/* A parameter server's update: contributions and one version of the model become the next version. The server
 * holds a part of the model; its versions lie in slots in memory. This file knows neither calls nor rounds:
 * pserver.c says which contributions make a version, and which slot is free (round.h).
 *
 * Memory is sparse: slots and velocity are mapped as whole images (shards.h), so that an element has one
 * index everywhere. Only the server's own range is ever written and gets pages. One thread. */
#ifndef WORKER_DATA_PARALLEL_SERVER_UPDATE_H
#define WORKER_DATA_PARALLEL_SERVER_UPDATE_H

#include "worker/checkpoint/checkpoint.h"
#include "worker/data_parallel/shards.h"
#include "worker/worker.h"

/* Others read it; the functions below alone change it. */
struct server_model {
    struct worker *worker;
    const struct job *job;
    uint32_t server, servers; /* this server's number; the job's servers */
    struct backend *backend;
    struct params *params;      /* names, layouts, counters; placed on a version to begin, load or save it */
    struct gradients *momentum; /* likewise; NULL: the optimizer has none */
    struct shard shard;
    struct params_range ranges[JOB_SERVERS_MAX]; /* (servers) their shards, for checkpoints */
    size_t parameters, elements;                 /* P, P + B */
    size_t image_bytes;
    uint64_t fingerprint;
    struct segment slots;    /* transport "inline": mapped for this process alone */
    struct segment velocity; /* (2, P) of even and of odd versions */
    uint32_t threads;        /* for an update */
};

/* Opens the math library, and lays out the model and its momentum. The slots follow. After a failure too,
 * server_model_close gives everything back. */
enum status server_model_open(struct server_model *model, struct worker *worker, struct error *error);
enum status server_model_open_slots(struct server_model *model, uint32_t slots, struct error *error);
void server_model_close(struct server_model *model);

/* Fills `version`, the first of this process, in `slot`: from the checkpoint of a resumed run, from /init, or
 * drawn from the seed. Blocks on files. */
enum status server_model_fill(struct server_model *model, uint64_t version, uint32_t slot,
                              struct error *error);

/* The image in `slot`. */
float *server_model_image(const struct server_model *model, uint32_t slot);

/* Places the params and the momentum on `version`, which lies in `slot`. */
void server_model_place(struct server_model *model, uint64_t version, uint32_t slot);

/* This server's values, as they are placed now. */
struct checkpoint_values server_model_values(const struct server_model *model);

/* An update: `version`, in slot `from`, and contributions become the next version, in slot `to`. */
struct server_update {
    uint64_t version;
    uint32_t from, to;
    double lr;
    uint32_t count;
    const float *images[JOB_TRAINERS_MAX]; /* (count) the contributions, in the order of summation */
    /* Out, with STATUS_AGAIN: the contribution that is not finite, and where. */
    uint32_t bad;
    const char *what, *entry; /* "gradient" or "statistic"; the entry's name */
};

/* Computes the next version. Results are written beside their inputs: parameters and statistics into the slot
 * `to`, velocity into the buffer of the other parity. So a bad contribution has changed nothing.
 *
 * Statistics: running' = 0.9 running + 0.1 (s_0 + s_1 + …) / n for each element, in double. The batches of an
 * update count as one (num_batches_tracked).
 *
 * STATUS_AGAIN: a contribution has a NaN or an infinity. STATUS_INTERNAL: all are finite, and the new
 * parameters are not. */
enum status server_model_update(struct server_model *model, struct server_update *update,
                                struct error *error);

#endif
