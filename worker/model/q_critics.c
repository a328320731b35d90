/* Several critics: the least of their values, their loss, and what pulls at the actions that they judge. */
#include "worker/model/q_critics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status q_critics_open(struct q_critics *c, const struct q_learning *p, struct error *error)
{
    const struct policy_config *config = &p->config;
    struct layers_shape shape = {.inputs = p->inputs + p->components,
                                 .outputs = 1,
                                 .layers = config->q.critic_layers,
                                 .activation = config->activation == POLICY_TANH ? DENSE_TANH : DENSE_RELU,
                                 .pulls_inputs = true};
    memcpy(shape.width, config->q.critic_width, shape.layers * sizeof shape.width[0]);
    enum status status = q_matrix(&c->pull, 1, error);
    if (status == STATUS_OK)
        status = q_matrix(&c->input_pull, shape.inputs, error);
    for (; c->count < config->q.critics && status == STATUS_OK; c->count++) {
        char first[POLICY_NAME_BYTES], target[POLICY_NAME_BYTES];
        snprintf(first, sizeof first, "critic.qf%u.0.weight", c->count);
        snprintf(target, sizeof target, "critic_target.qf%u.0.weight", c->count);
        status = q_network_open(&c->of[c->count], p, &shape, first, target, error);
    }
    return status;
}

void q_critics_close(struct q_critics *c)
{
    for (uint32_t j = 0; j < c->count; j++)
        q_network_close(&c->of[j]);
    free(c->pull.at);
    free(c->input_pull.at);
}

void q_critics_load(struct q_critics *c, const struct q_learning *p)
{
    for (uint32_t j = 0; j < c->count; j++)
        q_network_load(&c->of[j], p);
}

static float value_at(const struct q_critics *c, uint32_t critic, uint32_t row)
{
    return c->value[critic].at[row * c->value[critic].stride];
}

/* The critic with the least value of the row; the first of equal ones. A NaN is the least, so that it is
 * told, as PyTorch's min has it. */
static uint32_t least_of(const struct q_critics *c, uint32_t used, uint32_t row)
{
    uint32_t least = 0;
    for (uint32_t j = 1; j < used; j++)
        if (value_at(c, j, row) < value_at(c, least, row) || isnan(value_at(c, j, row)))
            least = j;
    return least;
}

void q_critics_judge(struct q_critics *c, const struct q_learning *p, uint32_t count, double *least)
{
    for (uint32_t j = 0; j < c->count; j++)
        c->value[j] = layers_forward(c->of[j].target, c->of[j].target_work, count, p->input);
    for (uint32_t i = 0; i < count; i++)
        least[i] = (double)value_at(c, least_of(c, c->count, i), i);
}

double q_critics_learn(struct q_critics *c, struct q_learning *p, const struct policy_transitions *batch,
                       uint32_t first, uint32_t count, const double *target, double scale)
{
    const double share = scale / batch->count;
    double loss = 0;
    q_read_observations(p, batch, false, first, count);
    q_read_actions(p, (const float *)batch->actions + (size_t)first * p->components, p->components, count);
    for (uint32_t j = 0; j < c->count; j++) {
        struct q_network *critic = &c->of[j];
        c->value[j] = layers_forward(critic->layers, critic->work, count, p->input);
        for (uint32_t i = 0; i < count; i++) {
            const double error = (double)value_at(c, j, i) - target[i];
            loss += share * error * error;
            c->pull.at[i * c->pull.stride] = (float)(2 * share * error);
        }
        layers_backward(critic->layers, critic->work, c->pull, p->gradient + critic->offset, first > 0,
                        (struct dense_matrix){0});
    }
    return loss;
}

enum status q_critics_step(struct q_critics *c, const struct q_learning *p,
                           const struct policy_transitions *batch, double lr, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t j = 0; j < c->count && status == STATUS_OK; j++)
        status = q_check_gradient(p, &c->of[j], batch, error);
    for (uint32_t j = 0; j < c->count && status == STATUS_OK; j++)
        q_network_step(&c->of[j], p, lr, p->steps, 1);
    return status;
}

/* Writes dL/d the actions of the rows that critic j has judged, of all that went forward. */
static void pull_critic(struct q_critics *c, const struct q_learning *p, uint32_t j, uint32_t count,
                        const uint32_t *row, float slope, struct dense_matrix d_actions)
{
    layers_keep(c->of[j].layers, c->of[j].work, count, row);
    for (uint32_t i = 0; i < count; i++)
        c->pull.at[i * c->pull.stride] = slope;
    layers_backward(c->of[j].layers, c->of[j].work, c->pull, NULL, false, c->input_pull);
    for (uint32_t i = 0; i < count; i++)
        memcpy(d_actions.at + row[i] * d_actions.stride,
               c->input_pull.at + i * c->input_pull.stride + p->inputs, p->components * sizeof *d_actions.at);
}

void q_critics_pull(struct q_critics *c, const struct q_learning *p, uint32_t used, uint32_t count,
                    float slope, double *least, struct dense_matrix d_actions)
{
    uint32_t chosen[POLICY_CHUNK_ROWS];
    for (uint32_t j = 0; j < used; j++)
        c->value[j] = layers_forward(c->of[j].layers, c->of[j].work, count, p->input);
    for (uint32_t i = 0; i < count; i++) {
        chosen[i] = least_of(c, used, i);
        least[i] = (double)value_at(c, chosen[i], i);
    }
    for (uint32_t j = 0; j < used; j++) {
        uint32_t row[POLICY_CHUNK_ROWS], rows = 0;
        for (uint32_t i = 0; i < count; i++)
            if (chosen[i] == j)
                row[rows++] = i;
        if (rows > 0)
            pull_critic(c, p, j, rows, row, slope, d_actions);
    }
}

void q_critics_follow(struct q_critics *c, const struct q_learning *p)
{
    for (uint32_t j = 0; j < c->count; j++)
        q_network_follow(&c->of[j], p, p->config.q.tau);
}
