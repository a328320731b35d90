/* Plays one episode after the other, and draws each state. */
#include "worker/reinforce/policy_play.h"

#include "worker/reinforce/player.h"

#include <stdlib.h>

struct picture {
    void *bytes;
    size_t capacity;
};

/* Draws environment `index`. The picture's memory grows as the environment asks for more. */
static enum status draw(struct picture *picture, const struct player *player, int kind, uint32_t index,
                        struct play_frame *frame, struct error *error)
{
    for (;;) {
        const size_t size = environments_render(player->environments, index, kind, &frame->width,
                                                &frame->height, picture->bytes, picture->capacity);
        frame->size = size;
        frame->bytes = picture->bytes;
        if (size == 0)
            return error_set(error, STATUS_UNAVAILABLE, "%s draws no %s",
                             environments_name(player->environments),
                             kind == ENVIRONMENT_TEXT ? "text" : "pictures");
        if (size <= picture->capacity)
            return STATUS_OK;
        void *more = realloc(picture->bytes, size);
        if (more == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for a picture of %zu bytes", size);
        *picture = (struct picture){more, size};
    }
}

static enum status show_state(struct picture *picture, const struct player *player, uint32_t index,
                              const struct play_settings *settings, struct error *error)
{
    struct play_frame frame = {.episode = index + 1, .step = player->step, .reward = player->rewards[index]};
    if (settings->picture == 0)
        return STATUS_OK;
    const enum status status = draw(picture, player, settings->picture, index, &frame, error);
    return status == STATUS_OK ? settings->show(settings->context, &frame, error) : status;
}

static enum status play_episode(struct picture *picture, struct player *player, uint32_t index,
                                const struct play_settings *settings, struct error *error)
{
    enum status status = player_begin(player, index, 1, error);
    if (status == STATUS_OK)
        status = show_state(picture, player, index, settings, error);
    while (status == STATUS_OK && player->alive > 0) {
        status = player_step(player, settings->sampled, error);
        if (status == STATUS_OK)
            status = show_state(picture, player, index, settings, error);
    }
    if (status != STATUS_OK)
        return status;
    struct control_metrics metrics;
    episode_metrics_mean(&player->metrics, index * player->agents, player->agents, &metrics);
    settings->over(settings->context, index + 1, player->rewards[index], player->step, &metrics);
    return STATUS_OK;
}

enum status policy_play(const char *checkpoint, const struct job *job, const struct play_settings *settings,
                        struct error *error)
{
    struct player player = {0};
    struct picture picture = {0};
    enum status status = player_open_checkpoint(&player, checkpoint, job, settings->episodes, error);
    for (uint32_t i = 0; i < settings->episodes && status == STATUS_OK; i++)
        status = play_episode(&picture, &player, i, settings, error);
    free(picture.bytes);
    player_close(&player);
    return status;
}
