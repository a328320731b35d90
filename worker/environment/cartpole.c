/* CartPole over many environments at once. States lie value by value (all x, then all x_dot, …). A step
 * gathers LANES environments into arrays of constant length, which lets the compiler use vectors, computes,
 * and scatters. Every environment goes through the same operations, so its bits depend neither on its place
 * nor on the number of others. A short last block fills the remaining lanes with its first environment and
 * does not store their results. */
#include "worker/environment/cartpole.h"

enum { LANES = 8 };

struct lanes {
    double x[LANES];
    double x_dot[LANES];
    double theta[LANES];
    double theta_dot[LANES];
};

void cartpole_reset(double *states, uint32_t count, uint32_t index, const struct rng_key *key)
{
    for (uint32_t block = 0; block < CARTPOLE_STATE_SIZE / 2; block++) {
        uint32_t words[4];
        rng_block(key, RNG_RESET, block, words);
        for (uint32_t i = 0; i < 2; i++) {
            double uniform = rng_uniform_double(words[2 * i], words[2 * i + 1]);
            states[(size_t)(2 * block + i) * count + index] =
                -CARTPOLE_RESET_MAX + 2 * CARTPOLE_RESET_MAX * uniform;
        }
    }
}

static void lanes_transition(struct lanes *lanes, const uint8_t actions[LANES])
{
    for (int i = 0; i < LANES; i++) {
        struct cartpole_state state = {lanes->x[i], lanes->x_dot[i], lanes->theta[i], lanes->theta_dot[i]};
        state = cartpole_transition(state, actions[i]);
        lanes->x[i] = state.x;
        lanes->x_dot[i] = state.x_dot;
        lanes->theta[i] = state.theta;
        lanes->theta_dot[i] = state.theta_dot;
    }
}

void cartpole_step(double *states, uint32_t count, uint32_t n, const uint32_t *indices,
                   const uint8_t *actions, uint8_t *terminated)
{
    double *x = states, *x_dot = x + count, *theta = x_dot + count, *theta_dot = theta + count;
    for (uint32_t begin = 0; begin < n; begin += LANES) {
        uint32_t used = n - begin < LANES ? n - begin : LANES;
        struct lanes lanes;
        uint8_t lane_actions[LANES];
        for (uint32_t i = 0; i < LANES; i++) {
            uint32_t from = begin + (i < used ? i : 0);
            lanes.x[i] = x[indices[from]];
            lanes.x_dot[i] = x_dot[indices[from]];
            lanes.theta[i] = theta[indices[from]];
            lanes.theta_dot[i] = theta_dot[indices[from]];
            lane_actions[i] = actions[from];
        }
        lanes_transition(&lanes, lane_actions);
        for (uint32_t i = 0; i < used; i++) {
            uint32_t index = indices[begin + i];
            x[index] = lanes.x[i];
            x_dot[index] = lanes.x_dot[i];
            theta[index] = lanes.theta[i];
            theta_dot[index] = lanes.theta_dot[i];
            terminated[begin + i] = cartpole_terminated(
                (struct cartpole_state){lanes.x[i], lanes.x_dot[i], lanes.theta[i], lanes.theta_dot[i]});
        }
    }
}

void cartpole_observe(const double *states, uint32_t count, uint32_t n, const uint32_t *indices,
                      float *observations)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t value = 0; value < CARTPOLE_STATE_SIZE; value++)
            observations[(size_t)i * CARTPOLE_STATE_SIZE + value] =
                (float)states[(size_t)value * count + indices[i]];
}
