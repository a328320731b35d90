/* Plays all episodes greedily at once, with one batch of the policy for each step. */
#include "worker/reinforce/policy_evaluate.h"

enum status policy_evaluate(struct player_summary *summary, const char *checkpoint, const struct job *job,
                            uint32_t episodes, struct error *error)
{
    struct player player = {0};
    enum status status = player_open_checkpoint(&player, checkpoint, job, episodes, error);
    if (status == STATUS_OK)
        status = player_begin(&player, 0, episodes, error);
    while (status == STATUS_OK && player.alive > 0)
        status = player_step(&player, false, error);
    if (status == STATUS_OK)
        *summary = player_summarize(&player);
    player_close(&player);
    return status;
}
