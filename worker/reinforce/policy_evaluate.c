/* Greedy play: all episodes at once, one batch of the policy for each step. */
#include "worker/reinforce/policy_evaluate.h"

#include "worker/reinforce/player.h"

#include <math.h>

static struct policy_evaluation summary_of(const struct player *player)
{
    const double n = player->episodes, *sums = player->rewards;
    struct policy_evaluation found = {.least = sums[0], .most = sums[0]};
    double squares = 0;
    for (uint32_t i = 0; i < player->episodes; i++) {
        found.mean += sums[i] / n;
        found.least = fmin(found.least, sums[i]);
        found.most = fmax(found.most, sums[i]);
    }
    for (uint32_t i = 0; i < player->episodes; i++)
        squares += (sums[i] - found.mean) * (sums[i] - found.mean);
    episode_metrics_mean(&player->metrics, 0, player->metrics.columns, &found.metrics);
    found.deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
    return found;
}

enum status policy_evaluate(struct policy_evaluation *evaluation, const char *checkpoint,
                            const struct job *job, uint32_t episodes, struct error *error)
{
    struct player player = {0};
    enum status status = player_open(&player, checkpoint, job, episodes, error);
    if (status == STATUS_OK)
        status = player_begin(&player, 0, episodes, error);
    while (status == STATUS_OK && player.alive > 0)
        status = player_step(&player, false, error);
    if (status == STATUS_OK)
        *evaluation = summary_of(&player);
    player_close(&player);
    return status;
}
