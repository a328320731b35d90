/* Frames to standard output or into a film; a line for each episode. The command's process. */
#include "daemon/commands/commands.h"

#include "daemon/commands/film.h"
#include "daemon/commands/job_files.h"
#include "daemon/log/runlog.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/evaluator.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum status show_text(void *context, const struct play_frame *frame, struct error *error)
{
    static const struct timespec pause = {.tv_nsec = 40000000};
    const bool is_screen = isatty(STDOUT_FILENO);
    (void)context;
    (void)error;
    if (is_screen) /* from the top left corner, on an empty screen */
        fputs("\033[H\033[2J", stdout);
    fwrite(frame->bytes, 1, frame->size, stdout);
    printf("Episode %" PRIu32 "\tStep: %" PRIu32 "\tReward: %.2f\n", frame->episode, frame->step,
           frame->reward);
    fflush(stdout);
    if (is_screen)
        nanosleep(&pause, NULL);
    return STATUS_OK;
}

static enum status show_picture(void *context, const struct play_frame *frame, struct error *error)
{
    return film_add(context, frame->width, frame->height, frame->bytes, error);
}

static void print_episode(void *context, uint32_t episode, double reward, uint32_t steps,
                          const struct control_metrics *metrics)
{
    char text[EPISODE_MEANS_BYTES];
    (void)context;
    episode_means_text(text, metrics);
    printf("Episode %" PRIu32 "\tReward: %.2f\tSteps: %" PRIu32 "%s\n", episode, reward, steps, text);
    fflush(stdout);
}

static enum status play_into(struct film *film, const struct arguments *arguments, const struct job *job,
                             struct error *error)
{
    const bool is_text = arguments->render != NULL && film == NULL;
    const struct play_settings settings = {.episodes = arguments->episodes > 0 ? arguments->episodes : 1,
                                           .sampled = arguments->sample,
                                           .picture = is_text        ? ENVIRONMENT_TEXT
                                                      : film != NULL ? ENVIRONMENT_RGB
                                                                     : 0,
                                           .show = is_text ? show_text : show_picture,
                                           .over = print_episode,
                                           .context = film};
    return policy_play(arguments->checkpoint, job, &settings, error);
}

enum status play(const struct arguments *arguments, struct job *job, struct error *error)
{
    struct film *film = NULL;
    struct error why = {0};
    enum status status = job_files_of_checkpoint(job, arguments->checkpoint, JOB_REINFORCE, error);
    if (status != STATUS_OK)
        return status;
    job_resolve(job);
    if (arguments->render != NULL && strcmp(arguments->render, "text") != 0)
        status = film_open(&film, arguments->render, error);
    if (status != STATUS_OK)
        return status;
    status = play_into(film, arguments, job, error);
    if (film_close(film, status == STATUS_OK, &why) != STATUS_OK && status == STATUS_OK) {
        *error = why;
        status = why.status;
    }
    return status;
}
