/* A network between workers that delays and repeats messages, and reorders those of different connections: a
 * ROUTER in front of each server, and
 * a DEALER behind it for each connection. Received messages lie in one pool until the test has one at random,
 * or all, delivered; so the test, and no thread, decides the order of arrival. No message is lost, except
 * those of a worker that was cut off. */
#ifndef TEST_WORKER_REFERENCE_RREF_REORDER_H
#define TEST_WORKER_REFERENCE_RREF_REORDER_H

#include "test/worker/net/net_door.h"
#include "test/worker/net/net_fixture.h"

#include <zmq.h>

enum { REORDER_FRONTS = 4, REORDER_LANES = 512, REORDER_PARCELS = 8192 };

struct reorder_lane {
    unsigned front;
    uint16_t worker; /* the worker that dialed */
    uint8_t id[5];
    bool is_cut;
    void *back;
};

struct reorder_parcel {
    unsigned lane;
    bool is_down; /* towards the worker that dialed */
    size_t bytes[2];
    uint8_t *frames[2];
};

struct reorder {
    void *contexts[REORDER_FRONTS], *fronts[REORDER_FRONTS];
    struct endpoint_zap *doors[REORDER_FRONTS];
    char back_addresses[REORDER_FRONTS][96];
    unsigned front_count, lane_count, parcel_count;
    struct reorder_lane lanes[REORDER_LANES];
    struct reorder_parcel parcels[REORDER_PARCELS];
    unsigned delivered, repeated, overtaken;
};

static inline void *reorder_socket(struct reorder *reorder, unsigned front, int type)
{
    int none = 0;
    void *socket = zmq_socket(reorder->contexts[front], type);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof none);
    return socket;
}

static inline void reorder_open(struct reorder *reorder)
{
    memset(reorder, 0, sizeof *reorder);
}

/* Puts `address` in front of the server that listens at `back_address`: of server 0 first, then 1, and so on.
 */
static inline void reorder_add(struct reorder *reorder, const char *address, const char *back_address)
{
    unsigned front = reorder->front_count++;
    ck_assert_uint_lt(front, REORDER_FRONTS);
    snprintf(reorder->back_addresses[front], sizeof reorder->back_addresses[front], "%s", back_address);
    reorder->contexts[front] = zmq_ctx_new();
    reorder->fronts[front] = reorder_socket(reorder, front, ZMQ_ROUTER);
    reorder->doors[front] = door_serve(reorder->contexts[front], reorder->fronts[front],
                                       (const uint8_t *)NET_SECRET, (uint16_t)front);
    ck_assert_int_eq(zmq_bind(reorder->fronts[front], address), 0);
}

static inline void reorder_free_parcel(struct reorder_parcel *parcel)
{
    free(parcel->frames[0]);
    free(parcel->frames[1]);
}

static inline void reorder_close(struct reorder *reorder)
{
    for (unsigned i = 0; i < reorder->parcel_count; i++)
        reorder_free_parcel(&reorder->parcels[i]);
    for (unsigned i = 0; i < reorder->lane_count; i++)
        zmq_close(reorder->lanes[i].back);
    for (unsigned i = 0; i < reorder->front_count; i++) {
        zmq_close(reorder->fronts[i]);
        zmq_ctx_term(reorder->contexts[i]);
        endpoint_zap_free(reorder->doors[i]);
    }
}

static inline unsigned reorder_lane_of(struct reorder *reorder, unsigned front, const uint8_t id[5])
{
    unsigned i = 0;
    while (i < reorder->lane_count &&
           (reorder->lanes[i].front != front || memcmp(reorder->lanes[i].id, id, 5) != 0))
        i++;
    if (i == reorder->lane_count) {
        ck_assert_uint_lt(i, REORDER_LANES);
        struct reorder_lane *lane = &reorder->lanes[reorder->lane_count++];
        *lane = (struct reorder_lane){.front = front, .back = reorder_socket(reorder, front, ZMQ_DEALER)};
        door_show_pass(lane->back, (const uint8_t *)NET_SECRET, (uint16_t)front);
        memcpy(lane->id, id, 5);
        ck_assert_int_eq(zmq_connect(lane->back, reorder->back_addresses[front]), 0);
    }
    return i;
}

/* What `worker` sends from now on is lost. */
static inline void reorder_cut(struct reorder *reorder, uint16_t worker)
{
    for (unsigned i = 0; i < reorder->lane_count; i++)
        if (reorder->lanes[i].worker == worker)
            reorder->lanes[i].is_cut = true;
}

static inline bool reorder_read_frame(void *socket, struct reorder_parcel *parcel, unsigned i)
{
    zmq_msg_t message;
    zmq_msg_init(&message);
    bool is_there = zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) >= 0;
    if (is_there) {
        parcel->bytes[i] = zmq_msg_size(&message);
        parcel->frames[i] = malloc(parcel->bytes[i] + 1);
        memcpy(parcel->frames[i], zmq_msg_data(&message), parcel->bytes[i]);
    }
    zmq_msg_close(&message);
    return is_there;
}

/* Takes the rest of one message into the pool. */
static inline void reorder_pool(struct reorder *reorder, void *socket, struct reorder_parcel parcel)
{
    struct wire_header header;
    struct reorder_lane *lane = &reorder->lanes[parcel.lane];
    ck_assert(reorder_read_frame(socket, &parcel, 1));
    ck_assert_int_eq(wire_decode(&header, parcel.frames[0], parcel.bytes[0], parcel.bytes[1], NULL),
                     STATUS_OK);
    if (!parcel.is_down && !lane->is_cut)
        lane->worker = header.source;
    if (!parcel.is_down && lane->is_cut) {
        reorder_free_parcel(&parcel);
        return;
    }
    ck_assert_uint_lt(reorder->parcel_count, REORDER_PARCELS);
    reorder->parcels[reorder->parcel_count++] = parcel;
}

/* Takes in all that has come. */
static inline void reorder_take(struct reorder *reorder)
{
    uint8_t id[5];
    for (unsigned i = 0; i < reorder->front_count; i++) {
        void *front = reorder->fronts[i];
        while (zmq_recv(front, id, sizeof id, ZMQ_DONTWAIT) == sizeof id) {
            struct reorder_parcel parcel = {.lane = reorder_lane_of(reorder, i, id)};
            ck_assert(reorder_read_frame(front, &parcel, 0));
            reorder_pool(reorder, front, parcel);
        }
    }
    for (unsigned i = 0; i < reorder->lane_count; i++) {
        struct reorder_parcel parcel = {.lane = i, .is_down = true};
        while (!reorder->lanes[i].is_cut && reorder_read_frame(reorder->lanes[i].back, &parcel, 0))
            reorder_pool(reorder, reorder->lanes[i].back, parcel);
    }
}

static inline void reorder_send(struct reorder *reorder, const struct reorder_parcel *parcel)
{
    struct reorder_lane *lane = &reorder->lanes[parcel->lane];
    void *socket = parcel->is_down ? reorder->fronts[lane->front] : lane->back;
    if (parcel->is_down)
        zmq_send(socket, lane->id, 5, ZMQ_SNDMORE);
    zmq_send(socket, parcel->frames[0], parcel->bytes[0], ZMQ_SNDMORE);
    zmq_send(socket, parcel->frames[1], parcel->bytes[1], 0);
    reorder->delivered++;
}

/* Delivers the oldest on the way that `random` says; of 16 one stays and is delivered again. */
static inline void reorder_deliver_one(struct reorder *reorder, uint64_t random)
{
    if (reorder->parcel_count == 0)
        return;
    unsigned at = (unsigned)(random % reorder->parcel_count);
    const struct reorder_parcel *drawn = &reorder->parcels[at];
    for (at = 0; reorder->parcels[at].lane != drawn->lane || reorder->parcels[at].is_down != drawn->is_down;)
        at++;
    struct reorder_parcel *parcel = &reorder->parcels[at];
    reorder->overtaken += at > 0;
    reorder_send(reorder, parcel);
    if (random >> 60 == 0) {
        reorder->repeated++;
        return;
    }
    reorder_free_parcel(parcel);
    memmove(parcel, parcel + 1, (--reorder->parcel_count - at) * sizeof *parcel);
}

static inline void reorder_deliver_all(struct reorder *reorder)
{
    for (unsigned i = 0; i < reorder->parcel_count; i++) {
        reorder_send(reorder, &reorder->parcels[i]);
        reorder_free_parcel(&reorder->parcels[i]);
    }
    reorder->parcel_count = 0;
}

#endif
