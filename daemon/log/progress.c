/* Counts units, and writes the pieces of a text that fit. */
#include "daemon/log/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double rate_of(uint64_t count, double seconds)
{
    return seconds > 0 ? (double)count / seconds : 0;
}

/* ---- records ---- */

/* The reward that /stop compares with its goal, once there is one. */
static void note_reward(struct progress *p, const struct job *job, const struct control_episode *r)
{
    p->figure = r->has_figures ? "reward" : "running reward";
    p->value = r->has_figures ? r->figures.ep_rew_mean : r->running_reward;
    p->goal = NAN;
    if (job->stop.has_evaluation_reward && !isnan(p->evaluation)) {
        p->figure = "evaluation";
        p->value = p->evaluation;
    }
    if (job->stop.has_evaluation_reward)
        p->goal = job->stop.evaluation_reward;
    else if (job->stop.has_running_reward)
        p->goal = job->stop.running_reward;
}

static void note_episode(struct progress *p, const struct job *job, const struct control_episode *r)
{
    const bool counts_steps = r->has_figures;
    p->unit = counts_steps ? "step" : "episode";
    p->done = counts_steps ? r->figures.total_timesteps : r->episode;
    p->total = counts_steps ? job->stop.steps : job->stop.has_episodes ? job->stop.episodes : 0;
    if (counts_steps && r->figures.has_evaluation) {
        p->evaluation = r->figures.evaluation.mean_reward;
        p->evaluation_std = r->figures.evaluation.std_reward;
    }
    note_reward(p, job, r);
    p->rate_unit = "steps";
    p->per_s = rate_of(r->env_steps, r->timing.episode_s);
}

static void note_total_updates(struct progress *p, const struct job *job)
{
    const bool counts_epochs = job->stop.has_epochs && p->epoch_updates > 0;
    const uint64_t of_epochs = counts_epochs ? job->stop.epochs * p->epoch_updates : UINT64_MAX;
    const uint64_t of_updates = job->stop.has_updates ? job->stop.updates : UINT64_MAX;
    const uint64_t least = of_epochs < of_updates ? of_epochs : of_updates;
    p->total = least < UINT64_MAX && (!job->stop.has_epochs || counts_epochs) ? least : 0;
}

static void note_update(struct progress *p, const struct job *job, const struct control_update *r)
{
    p->unit = "update";
    p->done = r->update;
    note_total_updates(p, job);
    const bool is_language = job->kind == JOB_MODEL_PARALLEL;
    p->figure = is_language ? "perplexity" : "loss";
    p->value = is_language ? exp(r->loss) : r->loss;
    p->goal = NAN;
    p->rate_unit = is_language ? "tokens" : "samples";
    p->per_s = rate_of(r->samples - r->timing.samples_before, r->timing.round_s);
}

/* The first record of this process is where its rate begins; a death may bring the run back behind it. */
static void note_time(struct progress *p, bool is_first, struct monotime now)
{
    if (is_first || p->done < p->begun_at) {
        p->begin = now;
        p->begun_at = p->done;
    }
    const double seconds = (double)monotime_us_between(p->begin, now) * 1e-6;
    const double rate = rate_of(p->done - p->begun_at, seconds);
    const uint64_t left = p->total > p->done ? p->total - p->done : 0;
    p->eta_s = p->total > 0 && rate > 0 ? (double)left / rate : (double)NAN;
}

void progress_note(struct progress *p, const struct job *job, const struct control_message *record,
                   struct monotime now)
{
    const bool is_first = p->unit == NULL;
    if (is_first)
        p->evaluation = NAN;
    p->evaluating = (struct control_share){0};
    if (record->kind == CONTROL_EPOCH) {
        const struct control_epoch *epoch = &record->body.epoch;
        p->epoch_updates = epoch->epoch > 0 ? epoch->update / epoch->epoch : 0;
        return;
    }
    if (record->kind == CONTROL_EPISODE)
        note_episode(p, job, &record->body.episode);
    else
        note_update(p, job, &record->body.update);
    note_time(p, is_first, now);
}

/* ---- text ---- */

enum piece { POSITION, SHARE, FIGURE, RATE, ETA, EVALUATING, PIECES, PIECE_BYTES = 64 };

static void write_eta(char out[PIECE_BYTES], double seconds)
{
    const uint64_t s = (uint64_t)seconds;
    if (!isfinite(seconds) || seconds > 1e9)
        return;
    if (s >= 86400)
        snprintf(out, PIECE_BYTES, "ETA %" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(out, PIECE_BYTES, "ETA %" PRIu64 ":%02u:%02u", s / 3600, (unsigned)(s / 60 % 60),
                 (unsigned)(s % 60));
    else
        snprintf(out, PIECE_BYTES, "ETA %" PRIu64 ":%02u", s / 60, (unsigned)(s % 60));
}

/* Of what is recorded. */
static void write_recorded(char out[PIECES][PIECE_BYTES], const struct progress *p)
{
    const int decimals = strcmp(p->figure, "loss") == 0 ? 4 : 2;
    snprintf(out[POSITION], PIECE_BYTES, "%s %" PRIu64, p->unit, p->done);
    if (p->total > 0) {
        const size_t length = strlen(out[POSITION]);
        snprintf(out[POSITION] + length, PIECE_BYTES - length, "/%" PRIu64, p->total);
        snprintf(out[SHARE], PIECE_BYTES, "%.0f %%",
                 floor(100 * fmin(1, (double)p->done / (double)p->total)));
    }
    if (isfinite(p->value) && isfinite(p->goal))
        snprintf(out[FIGURE], PIECE_BYTES, "%s %.2f of %g", p->figure, p->value, p->goal);
    else if (isfinite(p->value))
        snprintf(out[FIGURE], PIECE_BYTES, "%s %.*f", p->figure, decimals, p->value);
    if (p->per_s > 0)
        snprintf(out[RATE], PIECE_BYTES, "%.*f %s/s", p->per_s < 10 ? 1 : 0, p->per_s, p->rate_unit);
    write_eta(out[ETA], p->eta_s);
}

static void write_pieces(char out[PIECES][PIECE_BYTES], const struct progress *p)
{
    memset(out, 0, (size_t)PIECES * PIECE_BYTES);
    if (progress_evaluates(p))
        snprintf(out[EVALUATING], PIECE_BYTES, "evaluating %u/%u", p->evaluating.done, p->evaluating.total);
    if (p->unit != NULL)
        write_recorded(out, p);
}

static size_t join(char out[PROGRESS_TEXT_BYTES], char pieces[PIECES][PIECE_BYTES])
{
    size_t length = 0;
    out[0] = '\0';
    for (int i = 0; i < PIECES; i++)
        if (pieces[i][0] != '\0')
            length += (size_t)snprintf(out + length, PROGRESS_TEXT_BYTES - length, "%s%s",
                                       length > 0 ? "  " : "", pieces[i]);
    return length;
}

void progress_text(char out[PROGRESS_TEXT_BYTES], const struct progress *p, unsigned columns)
{
    static const enum piece least_first[] = {RATE, FIGURE, SHARE, ETA, POSITION};
    const size_t count = sizeof least_first / sizeof least_first[0] - !progress_evaluates(p);
    char pieces[PIECES][PIECE_BYTES];
    write_pieces(pieces, p);
    for (size_t i = 0; join(out, pieces) > columns && i < count; i++)
        pieces[least_first[i]][0] = '\0';
    if (join(out, pieces) > columns) /* half a number would be another one */
        out[strcspn(out, "/")] = '\0';
    if (columns < PROGRESS_TEXT_BYTES)
        out[columns] = '\0';
}

void progress_sum_up(char out[PROGRESS_TEXT_BYTES], const struct progress *p)
{
    char pieces[PIECES][PIECE_BYTES];
    out[0] = '\0';
    if (p->unit == NULL)
        return;
    write_pieces(pieces, p);
    int length =
        snprintf(out, PROGRESS_TEXT_BYTES, "%" PRIu64 " %s%s", p->done, p->unit, p->done == 1 ? "" : "s");
    if (pieces[FIGURE][0] != '\0' && strcmp(p->figure, "evaluation") != 0)
        length += snprintf(out + length, PROGRESS_TEXT_BYTES - (size_t)length, ", %s", pieces[FIGURE]);
    if (!isnan(p->evaluation))
        snprintf(out + length, PROGRESS_TEXT_BYTES - (size_t)length, ", evaluation %.2f +- %.2f",
                 p->evaluation, p->evaluation_std);
}
