/* Problems of a policy with any head. Linked into the tests that ask for it. */
#include "test/worker/model/policy_world.h"

#include "test/kernels/policy/mlp_problem.h"
#include "test/values.h"
#include "worker/environment/environment_spec.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t head_choices[WORLD_HEADS][3] = {{5}, {7}, {3, 2, 4}, {3, 4}};
static const double lows[] = {-1, -0.5, 0}, highs[] = {1, 2, 0.25};

/* ---- rows ---- */

static uint32_t draw_below(struct policy_world *world, uint32_t count)
{
    return (uint32_t)((mlp_problem_number(&world->state) + 1) / 2 * (float)count);
}

static struct environment_space head_action(enum world_head head)
{
    static const uint32_t components[WORLD_HEADS] = {1, 1, 3, 2, 3};
    if (head == WORLD_FLOATS)
        return (struct environment_space){
            .dtype = ENVIRONMENT_F32, .rank = 1, .shape = {3}, .low = lows, .high = highs};
    return (struct environment_space){.dtype = ENVIRONMENT_I32,
                                      .rank = components[head] > 1,
                                      .shape = {components[head]},
                                      .choices = head_choices[head]};
}

/* Whether the row's mask allows choice `choice` of component c, whose choices begin at `first`. */
static bool allows(const struct policy_world *world, uint32_t row, uint32_t first, uint32_t choice)
{
    return world->allowed == NULL || world->allowed[(size_t)row * world->choices + first + choice] != 0;
}

static uint32_t first_choice(const struct policy_world *world, uint32_t component)
{
    uint32_t first = 0;
    for (uint32_t c = 0; c < component; c++)
        first += world->config.action.choices[c];
    return first;
}

/* Forbids about half of each component's choices, but never all. */
static void draw_mask(struct policy_world *world, uint32_t row)
{
    uint8_t *mask = world->allowed + (size_t)row * world->choices;
    for (uint32_t i = 0; i < world->choices; i++)
        mask[i] = (uint8_t)draw_below(world, 2);
    for (uint32_t c = 0; c < world->components; c++)
        mask[first_choice(world, c) + draw_below(world, world->config.action.choices[c])] = 1;
}

static void draw_action(struct policy_world *world, uint32_t row)
{
    for (uint32_t c = 0; c < world->components; c++) {
        const size_t at = (size_t)row * world->components + c;
        if (world->choices == 0) {
            ((float *)world->actions)[at] = mlp_problem_number(&world->state);
            continue;
        }
        const uint32_t count = world->config.action.choices[c], first = first_choice(world, c);
        uint32_t choice = draw_below(world, count);
        while (!allows(world, row, first, choice))
            choice = (choice + 1) % count;
        ((int32_t *)world->actions)[at] = (int32_t)choice;
    }
}

static void draw_observation(struct policy_world *world, uint32_t row)
{
    for (size_t i = 0; i < world->elements; i++) {
        const size_t at = row * world->elements + i;
        if (world->config.observation.dtype == ENVIRONMENT_U8)
            ((uint8_t *)world->observations)[at] = (uint8_t)draw_below(world, 256);
        else
            ((float *)world->observations)[at] = mlp_problem_number(&world->state);
    }
}

static void take_memory(struct policy_world *world, uint32_t rows)
{
    world->row = values_memory(rows, sizeof *world->row);
    world->environment = values_memory(rows, sizeof *world->environment);
    world->step = values_memory(rows, sizeof *world->step);
    world->observations = values_memory(rows, environment_space_bytes(&world->config.observation));
    world->actions = values_memory(rows, world->components * sizeof(float));
    world->coefficient = values_memory(rows, sizeof *world->coefficient);
    if (world->config.has_mask)
        world->allowed = values_memory(rows, world->choices);
    world->batch = (struct policy_rows){.count = rows,
                                        .row = world->row,
                                        .observations = world->observations,
                                        .actions = world->actions,
                                        .allowed = world->allowed};
}

void policy_world_init(struct policy_world *world, enum world_head head, struct environment_space observation,
                       uint32_t rows, uint64_t seed)
{
    *world =
        (struct policy_world){.config = {.observation = observation,
                                         .action = head_action(head),
                                         .has_mask = head == WORLD_MASKED || head == WORLD_MASKED_CHOICES,
                                         .seed = seed,
                                         .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
                                         .environments = rows,
                                         .rows_max = rows},
                              .state = seed};
    world->elements = environment_space_elements(&observation);
    world->components = (uint32_t)environment_space_elements(&world->config.action);
    world->choices = head == WORLD_FLOATS ? 0 : first_choice(world, world->components);
    take_memory(world, rows);
    for (uint32_t r = 0; r < rows; r++) {
        world->row[r] = rows - 1 - r;
        world->environment[r] = r % 7;
        world->step[r] = r / 7;
        world->coefficient[r] = 2 * mlp_problem_number(&world->state);
        draw_observation(world, r);
        if (world->allowed != NULL)
            draw_mask(world, r);
        draw_action(world, r);
    }
}

void policy_world_fini(struct policy_world *world)
{
    free(world->row);
    free(world->environment);
    free(world->step);
    free(world->observations);
    free(world->actions);
    free(world->allowed);
    free(world->coefficient);
}

/* ---- the policy's calls ---- */

struct policy *policy_world_open(const struct policy_world *world, struct backend *backend)
{
    struct policy *policy = NULL;
    struct error error = {0};
    ck_assert_msg(policy_new(&policy, &world->config, backend, &error) == STATUS_OK, "%s", error.text);
    return policy;
}

void policy_world_act(const struct policy_world *world, struct policy *policy, uint32_t episode)
{
    struct error error = {0};
    ck_assert_msg(policy_act(policy, &world->batch, episode, world->environment, world->step, &error) ==
                      STATUS_OK,
                  "%s", error.text);
}

double policy_world_learn(const struct policy_world *world, struct policy *policy)
{
    struct error error = {0};
    double loss = 0;
    ck_assert_msg(policy_learn(policy, &world->batch, world->coefficient, 1, &loss, NULL, NULL, &error) ==
                      STATUS_OK,
                  "%s", error.text);
    return loss;
}

size_t policy_world_action_bytes(const struct policy_world *world)
{
    return (size_t)world->batch.count * world->components * sizeof(float);
}

bool policy_world_is_allowed(const struct policy_world *world)
{
    for (uint32_t r = 0; r < world->batch.count && world->choices > 0; r++)
        for (uint32_t c = 0; c < world->components; c++) {
            const int32_t choice = ((const int32_t *)world->actions)[(size_t)r * world->components + c];
            if (choice < 0 || (uint32_t)choice >= world->config.action.choices[c] ||
                !allows(world, r, first_choice(world, c), (uint32_t)choice))
                return false;
        }
    return true;
}

/* ---- a bandit ---- */

/* The picture that a row shows stands in its first element: 0 or 1 of every other element. */
static uint32_t picture_of(const struct policy_world *world, uint32_t row)
{
    const size_t first = row * world->elements;
    return world->config.observation.dtype == ENVIRONMENT_U8
               ? ((const uint8_t *)world->observations)[first] == 0
               : ((const float *)world->observations)[first] == 0;
}

/* What a picture asks for of component c; of choices the first one from there on that is allowed. */
static double asked_for(const struct policy_world *world, uint32_t row, uint32_t c)
{
    const uint32_t picture = picture_of(world, row);
    if (world->choices == 0)
        return picture == 0 ? 0.5 : -0.25 * (c + 1);
    const uint32_t count = world->config.action.choices[c], first = first_choice(world, c);
    uint32_t choice = picture == 0 ? 0 : count - 1;
    while (!allows(world, row, first, choice))
        choice = (choice + 1) % count;
    return choice;
}

void policy_world_show(struct policy_world *world)
{
    for (uint32_t r = 0; r < world->batch.count; r++) {
        const uint32_t picture = draw_below(world, 2);
        for (size_t i = 0; i < world->elements; i++) {
            const size_t at = r * world->elements + i;
            if (world->config.observation.dtype == ENVIRONMENT_U8)
                ((uint8_t *)world->observations)[at] = i % 2 == picture ? 255 : 0;
            else
                ((float *)world->observations)[at] = i % 2 == picture ? 1 : 0;
        }
        if (world->allowed != NULL)
            draw_mask(world, r);
    }
}

static double reward_of(const struct policy_world *world, uint32_t row)
{
    double reward = 0;
    for (uint32_t c = 0; c < world->components; c++) {
        const size_t at = (size_t)row * world->components + c;
        const double asked = asked_for(world, row, c);
        const double off = world->choices == 0 ? (double)((const float *)world->actions)[at] - asked : 0;
        reward += world->choices == 0 ? -off * off : ((const int32_t *)world->actions)[at] == (int32_t)asked;
    }
    return reward / world->components;
}

double policy_world_reward(struct policy_world *world, bool coefficients)
{
    const uint32_t rows = world->batch.count;
    double mean = 0;
    for (uint32_t r = 0; r < rows; r++)
        mean += reward_of(world, r) / rows;
    for (uint32_t i = 0; i < rows && coefficients; i++)
        world->coefficient[i] = (float)((reward_of(world, world->row[i]) - mean) / rows);
    return mean;
}

double policy_world_train(struct policy_world *world, struct policy *policy, uint32_t updates)
{
    struct error error = {0};
    for (uint32_t update = 0; update < updates; update++) {
        policy_world_show(world);
        policy_world_act(world, policy, update);
        policy_world_reward(world, true);
        policy_world_learn(world, policy);
    }
    policy_world_show(world);
    ck_assert_msg(policy_choose(policy, &world->batch, &error) == STATUS_OK, "%s", error.text);
    return policy_world_reward(world, false);
}
