/* Steps of the built-in environments in blocks, compiled once per instruction set; any thread.
 *
 * A block is LANES environments. Their states are loaded into arrays of constant length, and loops over these
 * become vector code. Neighbours in memory are copied, others are gathered one by one. A short last block
 * fills its remaining lanes with its first environment, and stores nothing of them. */
#include "worker/environment/classic_lanes.h"

#include "kernels/lanes/lanes.h"
#include "worker/environment/acrobot.h"
#include "worker/environment/cartpole.h"
#include "worker/environment/environment.h"
#include "worker/environment/mountain_car.h"
#include "worker/environment/pendulum.h"

enum { LANES = LANES_COUNT };

struct block {
    double values[CLASSIC_VALUES_MAX][LANES];
    union { /* the actions */
        int32_t choices[LANES];
        float forces[LANES];
    };
    float observations[CLASSIC_OBSERVATION_MAX][LANES];
    float rewards[LANES];
    double terminated[LANES]; /* 1 or 0; as wide as the values, so that one loop writes both */
};

typedef void block_function(struct block *block);

/* What a kind does with a block. */
struct block_kind {
    uint32_t values, observations; /* of a row */
    block_function *transition;    /* writes values, rewards, terminated */
    block_function *observe;       /* writes observations; NULL: the observation is the state */
};

/* ---- blocks in memory ---- */

/* Where a block lies: its environments, and whether they are neighbours. */
struct block_place {
    uint32_t at[LANES];
    uint32_t used;
    bool dense;
};

LANES_INLINE struct block_place block_place(const struct classic_call *call, uint32_t begin)
{
    struct block_place place;
    place.used = call->n - begin < LANES ? call->n - begin : LANES;
    for (uint32_t i = 0; i < LANES; i++) {
        const uint32_t from = begin + (i < place.used ? i : 0);
        place.at[i] = call->which != NULL ? call->which[from] : from;
    }
    place.dense = place.used == LANES && place.at[LANES - 1] - place.at[0] == LANES - 1;
    return place;
}

LANES_INLINE void block_load_values(struct block *block, const struct classic_call *call,
                                    const struct block_place *place, uint32_t values)
{
    for (uint32_t v = 0; v < values; v++) {
        const double *from = call->states + v * call->stride;
        if (place->dense)
            memcpy(block->values[v], from + place->at[0], sizeof block->values[v]);
        else
            for (uint32_t i = 0; i < LANES; i++)
                block->values[v][i] = from[place->at[i]];
    }
}

LANES_INLINE void block_load_actions(struct block *block, const struct classic_call *call,
                                     const struct block_place *place)
{
    const char *actions = call->actions;
    if (place->dense)
        memcpy(block->choices, actions + place->at[0] * sizeof block->choices[0], sizeof block->choices);
    else
        for (uint32_t i = 0; i < LANES; i++)
            memcpy(&block->choices[i], actions + place->at[i] * sizeof block->choices[0],
                   sizeof block->choices[0]);
}

LANES_INLINE void block_store_values(const struct block *block, const struct classic_call *call,
                                     const struct block_place *place, uint32_t values)
{
    for (uint32_t v = 0; v < values; v++) {
        double *to = call->states + v * call->stride;
        if (place->dense)
            memcpy(to + place->at[0], block->values[v], sizeof block->values[v]);
        else
            for (uint32_t i = 0; i < place->used; i++)
                to[place->at[i]] = block->values[v][i];
    }
}

LANES_INLINE void block_copy_values(struct block *b, uint32_t values)
{
    for (uint32_t v = 0; v < values; v++)
        for (uint32_t i = 0; i < LANES; i++)
            b->observations[v][i] = (float)b->values[v][i];
}

LANES_INLINE void block_store_observations(const struct block *block, const struct classic_call *call,
                                           const struct block_place *place, uint32_t width)
{
    float *dense = call->observations + (size_t)place->at[0] * width;
    if (place->dense) {
        for (uint32_t i = 0; i < LANES; i++)
            for (uint32_t k = 0; k < width; k++)
                dense[i * width + k] = block->observations[k][i];
        return;
    }
    for (uint32_t i = 0; i < place->used; i++)
        for (uint32_t k = 0; k < width; k++)
            call->observations[(size_t)place->at[i] * width + k] = block->observations[k][i];
}

LANES_INLINE void block_store_ends(const struct block *block, const struct classic_call *call,
                                   const struct block_place *place)
{
    uint8_t flags[LANES];
    for (uint32_t i = 0; i < LANES; i++)
        flags[i] = (uint8_t)((int32_t)block->terminated[i] * ENVIRONMENT_TERMINATED);
    if (place->dense) {
        memcpy(call->rewards + place->at[0], block->rewards, sizeof block->rewards);
        memcpy(call->flags + place->at[0], flags, sizeof flags);
        return;
    }
    for (uint32_t i = 0; i < place->used; i++) {
        call->rewards[place->at[i]] = block->rewards[i];
        call->flags[place->at[i]] = flags[i];
    }
}

LANES_INLINE void step_blocks(const struct classic_call *call, const struct block_kind kind)
{
    for (uint32_t begin = 0; begin < call->n; begin += LANES) {
        const struct block_place place = block_place(call, begin);
        struct block block;
        block_load_values(&block, call, &place, kind.values);
        if (call->actions != NULL) {
            block_load_actions(&block, call, &place);
            kind.transition(&block);
            block_store_values(&block, call, &place, kind.values);
            block_store_ends(&block, call, &place);
        }
        if (kind.observe != NULL)
            kind.observe(&block);
        else
            block_copy_values(&block, kind.values);
        block_store_observations(&block, call, &place, kind.observations);
    }
}

/* ---- CartPole-v1 ---- */

LANES_INLINE void cartpole_move(struct block *b)
{
    for (uint32_t i = 0; i < LANES; i++) {
        const struct cartpole_state state = {b->values[0][i], b->values[1][i], b->values[2][i],
                                             b->values[3][i]};
        const struct cartpole_state next = cartpole_transition(state, b->choices[i]);
        b->values[0][i] = next.x;
        b->values[1][i] = next.x_dot;
        b->values[2][i] = next.theta;
        b->values[3][i] = next.theta_dot;
        b->terminated[i] = cartpole_terminated(next) ? 1 : 0;
        b->rewards[i] = 1;
    }
}

/* ---- Acrobot-v1 ---- */

LANES_INLINE struct acrobot_state acrobot_at(const struct block *b, uint32_t i)
{
    return (struct acrobot_state){b->values[0][i], b->values[1][i], b->values[2][i], b->values[3][i]};
}

/* Two turns wrap all angles but those of a few states at the velocities' bounds. */
LANES_INLINE void acrobot_wrap_all(struct block *b)
{
    int outside = 0;
    for (uint32_t v = 0; v < 2; v++)
        for (uint32_t i = 0; i < LANES; i++) {
            const double theta = acrobot_turn(acrobot_turn(b->values[v][i]));
            b->values[v][i] = theta;
            outside |= !acrobot_is_wrapped(theta);
        }
    for (uint32_t v = 0; v < 2 && outside; v++)
        for (uint32_t i = 0; i < LANES; i++)
            b->values[v][i] = acrobot_wrap(b->values[v][i]);
}

LANES_INLINE void acrobot_move_all(struct block *b)
{
    for (uint32_t i = 0; i < LANES; i++) {
        const struct acrobot_state next = acrobot_swing(acrobot_at(b, i), b->choices[i]);
        b->values[0][i] = next.theta1;
        b->values[1][i] = next.theta2;
        b->values[2][i] = next.theta1_dot;
        b->values[3][i] = next.theta2_dot;
    }
    acrobot_wrap_all(b);
    for (uint32_t i = 0; i < LANES; i++) {
        b->terminated[i] = acrobot_terminated(acrobot_at(b, i)) ? 1 : 0;
        b->rewards[i] = (float)(b->terminated[i] - 1);
    }
}

LANES_INLINE void acrobot_look(struct block *b)
{
    for (uint32_t i = 0; i < LANES; i++) {
        b->observations[0][i] = (float)cosine(b->values[0][i]);
        b->observations[1][i] = (float)sine(b->values[0][i]);
        b->observations[2][i] = (float)cosine(b->values[1][i]);
        b->observations[3][i] = (float)sine(b->values[1][i]);
        b->observations[4][i] = (float)b->values[2][i];
        b->observations[5][i] = (float)b->values[3][i];
    }
}

/* ---- MountainCar-v0 and MountainCarContinuous-v0 ---- */

LANES_INLINE struct mountain_car_state mountain_car_at(const struct block *b, uint32_t i)
{
    return (struct mountain_car_state){b->values[0][i], b->values[1][i]};
}

LANES_INLINE void mountain_car_move(struct block *b)
{
    for (uint32_t i = 0; i < LANES; i++) {
        const struct mountain_car_state next = mountain_car_transition(mountain_car_at(b, i), b->choices[i]);
        b->values[0][i] = next.position;
        b->values[1][i] = next.velocity;
    }
    for (uint32_t i = 0; i < LANES; i++) {
        b->terminated[i] = mountain_car_terminated(mountain_car_at(b, i)) ? 1 : 0;
        b->rewards[i] = -1;
    }
}

LANES_INLINE void mountain_car_continuous_move(struct block *b)
{
    for (uint32_t i = 0; i < LANES; i++) {
        const struct mountain_car_state next =
            mountain_car_continuous_transition(mountain_car_at(b, i), b->forces[i]);
        b->values[0][i] = next.position;
        b->values[1][i] = next.velocity;
    }
    for (uint32_t i = 0; i < LANES; i++) {
        const bool terminated = mountain_car_continuous_terminated(mountain_car_at(b, i));
        b->terminated[i] = terminated ? 1 : 0;
        b->rewards[i] = mountain_car_continuous_reward(b->forces[i], terminated);
    }
}

/* ---- Pendulum-v1 ---- */

LANES_INLINE void pendulum_move(struct block *b)
{
    for (uint32_t i = 0; i < LANES; i++) {
        const struct pendulum_state state = {b->values[0][i], b->values[1][i]};
        const struct pendulum_state next = pendulum_transition(state, b->forces[i]);
        b->rewards[i] = pendulum_reward(state, b->forces[i]);
        b->values[0][i] = next.theta;
        b->values[1][i] = next.theta_dot;
        b->terminated[i] = 0;
    }
}

LANES_INLINE void pendulum_look(struct block *b)
{
    for (uint32_t i = 0; i < LANES; i++) {
        b->observations[0][i] = (float)cosine(b->values[0][i]);
        b->observations[1][i] = (float)sine(b->values[0][i]);
        b->observations[2][i] = (float)b->values[1][i];
    }
}

/* ---- the table ---- */

/* Each kind's function has its sizes and block functions as constants. */
#define CLASSIC_FUNCTION(name, ...)                                                                          \
    static void name##_step(const struct classic_call *call)                                                 \
    {                                                                                                        \
        step_blocks(call, (struct block_kind){__VA_ARGS__});                                                 \
    }

CLASSIC_FUNCTION(cartpole, CARTPOLE_STATE_SIZE, CARTPOLE_STATE_SIZE, cartpole_move, NULL)
CLASSIC_FUNCTION(acrobot, ACROBOT_STATE_SIZE, ACROBOT_OBSERVATION_SIZE, acrobot_move_all, acrobot_look)
CLASSIC_FUNCTION(mountain_car, MOUNTAIN_CAR_STATE_SIZE, MOUNTAIN_CAR_STATE_SIZE, mountain_car_move, NULL)
CLASSIC_FUNCTION(mountain_car_continuous, MOUNTAIN_CAR_STATE_SIZE, MOUNTAIN_CAR_STATE_SIZE,
                 mountain_car_continuous_move, NULL)
CLASSIC_FUNCTION(pendulum, PENDULUM_STATE_SIZE, PENDULUM_OBSERVATION_SIZE, pendulum_move, pendulum_look)

classic_step *const LANES_NAME(classic_lanes)[CLASSIC_KINDS] = {
    [CLASSIC_CARTPOLE] = cartpole_step,
    [CLASSIC_ACROBOT] = acrobot_step,
    [CLASSIC_MOUNTAIN_CAR] = mountain_car_step,
    [CLASSIC_MOUNTAIN_CAR_CONTINUOUS] = mountain_car_continuous_step,
    [CLASSIC_PENDULUM] = pendulum_step,
};
