/* The lines of the run's logs. Supervisor process; its only thread. */
#include "daemon/runlog_lines.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct line *line, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line->text + line->length, sizeof line->text - line->length, format, list);
    va_end(list);
    assert(length >= 0 && (size_t)length < sizeof line->text - line->length);
    line->length += (size_t)length;
}

static void begin(struct line *line)
{
    line->length = 0;
    line->text[0] = '\0';
}

enum { ALL_DIGITS = -1 };

/* JSON has no word for a number that is not one. */
static void add_number(struct line *line, const char *before, double value, int decimals)
{
    if (!isfinite(value))
        add(line, "%snull", before);
    else if (decimals == ALL_DIGITS)
        add(line, "%s%.17g", before, value);
    else
        add(line, "%s%.*f", before, decimals, value);
}

static double rate(uint64_t count, double seconds)
{
    return seconds > 0 ? (double)count / seconds : 0;
}

/* Every `timing` begins with the time of day. */
static void add_timing(struct line *line)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    add(line, LINE_TIMING "\"unix_s\":%.3f", (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
}

/* ---- events ---- */

/* By whom it is done: with the same seed, who did it changes nothing. */
static void add_company(struct line *line, const struct job *job)
{
    add_timing(line);
    add(line, ",\"pid\":%ld,\"version\":\"%s\"", (long)getpid(), COALESCED_VERSION);
    if (job->kind == JOB_REINFORCE) {
        add(line, ",\"observers\":%u,\"environments\":%u}}\n", job->observers.count,
            job->observers.environments);
        return;
    }
    add(line, ",\"servers\":%u,\"trainers\":%u,\"batch\":%u,\"threads\":%u", job->server.count,
        job->trainers.count, job->trainers.batch, job->trainers.threads);
    if (job->kind == JOB_MODEL_PARALLEL)
        add(line, ",\"part_threads\":[%u,%u,%u]", job->threads[JOB_LAYER_EMBEDDING].count,
            job->threads[JOB_LAYER_LSTM].count, job->threads[JOB_LAYER_DECODER].count);
    add(line, "}}\n");
}

void line_start(struct line *line, const struct job *job)
{
    begin(line);
    add(line, "{\"event\":\"start\",\"seed\":%" PRIu64, job->seed);
    add_company(line, job);
}

void line_resume(struct line *line, const struct job *job, uint64_t update)
{
    begin(line);
    add(line, "{\"event\":\"resume\",\"update\":%" PRIu64, update);
    add_company(line, job);
}

void line_finish_episodes(struct line *line, const char *why, uint64_t episodes, double running_reward,
                          double job_s)
{
    begin(line);
    add(line, "{\"event\":\"%s\",\"episodes\":%" PRIu64, why, episodes);
    add_number(line, ",\"running_reward\":", running_reward, ALL_DIGITS);
    add_timing(line);
    add(line, ",\"job_s\":%.6f}}\n", job_s);
}

void line_finish_updates(struct line *line, const char *why, uint64_t updates, double job_s)
{
    begin(line);
    add(line, "{\"event\":\"%s\",\"updates\":%" PRIu64, why, updates);
    add_timing(line);
    add(line, ",\"job_s\":%.6f}}\n", job_s);
}

void line_solved(struct line *line, double running_reward)
{
    begin(line);
    add(line, "Solved! Running reward is now %.2f!\n", running_reward);
}

/* ---- episodes ---- */

void line_episode_json(struct line *line, const struct control_episode *r)
{
    begin(line);
    add(line, "{\"episode\":%" PRIu64, r->episode);
    add_number(line, ",\"reward\":", r->reward, ALL_DIGITS);
    add_number(line, ",\"running_reward\":", r->running_reward, ALL_DIGITS);
    add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    add(line, ",\"env_steps\":%" PRIu64, r->env_steps);
    add_timing(line);
    add_number(line, ",\"episode_s\":", r->timing.episode_s, 6);
    add_number(line, ",\"learn_s\":", r->timing.learn_s, 6);
    add_number(line, ",\"env_steps_per_s\":", rate(r->env_steps, r->timing.episode_s), 1);
    add(line, ",\"launches\":%" PRIu64 ",\"requests\":%" PRIu64, r->timing.launches, r->timing.requests);
    add_number(line, ",\"batch_mean\":", r->timing.batch_mean, 3);
    add(line, ",\"batch_max\":%u", r->timing.batch_max);
    add_number(line, ",\"wait_us_p50\":", r->timing.wait_us_p50, 0);
    add_number(line, ",\"wait_us_p99\":", r->timing.wait_us_p99, 0);
    add(line, "}}\n");
}

void line_episode_text(struct line *line, const struct control_episode *r)
{
    begin(line);
    add(line, "Episode %" PRIu64 "\tLast reward: %.2f\tAverage reward: %.2f\n", r->episode, r->reward,
        r->running_reward);
}

void line_episode_progress(struct line *line, const struct control_episode *r)
{
    begin(line);
    add(line, "episode %" PRIu64 "  reward %.2f  running %.2f  %.0f steps/s", r->episode, r->reward,
        r->running_reward, rate(r->env_steps, r->timing.episode_s));
}

/* ---- updates and epochs ---- */

void line_update_json(struct line *line, const struct control_update *r)
{
    begin(line);
    add(line, "{\"update\":%" PRIu64, r->update);
    add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    add(line, ",\"losses\":[");
    for (uint32_t i = 0; i < r->trainers; i++)
        add_number(line, i > 0 ? "," : "", r->losses[i], ALL_DIGITS);
    add_number(line, "]," LINE_LR, r->lr, ALL_DIGITS);
    add(line, ",\"samples\":%" PRIu64 ",\"late\":%" PRIu64 ",\"version\":%" PRIu64, r->samples, r->late,
        r->update);
    add_timing(line);
    add_number(line, ",\"round_s\":", r->timing.round_s, 6);
    add_number(line, ",\"wait_s\":", r->timing.wait_s, 6);
    add_number(line, ",\"update_s\":", r->timing.update_s, 6);
    add_number(line, ",\"samples_per_s\":", rate(r->samples, r->timing.round_s), 1);
    add(line, ",\"bytes\":%" PRIu64 "}}\n", r->timing.bytes);
}

void line_update_text(struct line *line, const struct control_update *r)
{
    begin(line);
    add(line, "Update %" PRIu64 "\tLoss: %.4f\tSamples/s: %.1f\n", r->update, r->loss,
        rate(r->samples, r->timing.round_s));
}

void line_update_progress(struct line *line, const struct control_update *r)
{
    begin(line);
    add(line, "update %" PRIu64 "  loss %.4f  %.1f samples/s", r->update, r->loss,
        rate(r->samples, r->timing.round_s));
}

void line_epoch_json(struct line *line, const struct control_epoch *r)
{
    bool evaluated = r->evaluated > 0;
    begin(line);
    add(line, "{\"epoch\":%" PRIu64 ",\"update\":%" PRIu64, r->epoch, r->update);
    add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    add_number(line, ",\"test_loss\":", evaluated ? r->evaluation_loss : (double)NAN, ALL_DIGITS);
    add_number(line, ",\"accuracy\":", evaluated ? (double)r->correct / (double)r->evaluated : (double)NAN,
               ALL_DIGITS);
    add_number(line, ",\"correct\":", evaluated ? (double)r->correct : (double)NAN, 0);
    add(line, ",\"evaluated\":%" PRIu64, r->evaluated);
    add_timing(line);
    add_number(line, ",\"epoch_s\":", r->timing.epoch_s, 6);
    add_number(line, ",\"evaluation_s\":", r->timing.evaluation_s, 6);
    add(line, "}}\n");
}

void line_epoch_text(struct line *line, const struct control_epoch *r)
{
    begin(line);
    add(line, "Epoch %" PRIu64 "\tLoss: %.4f", r->epoch, r->loss);
    if (r->evaluated > 0)
        add(line, "\tTest loss: %.4f\tAccuracy: %.2f %%\t(%" PRIu64 " of %" PRIu64 ")", r->evaluation_loss,
            100 * (double)r->correct / (double)r->evaluated, r->correct, r->evaluated);
    add(line, "\n");
}

/* ---- a model-parallel job's: samples are tokens, a loss is the mean since the line before ---- */

/* Of the line's tokens those of a run before a resume were read in another time than the line's. */
static double tokens_per_s(const struct control_update *r)
{
    return rate(r->samples - r->timing.samples_before, r->timing.round_s);
}

void line_language_update_json(struct line *line, const struct control_update *r)
{
    begin(line);
    add(line, "{\"update\":%" PRIu64, r->update);
    add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    add_number(line, "," LINE_LR, r->lr, ALL_DIGITS);
    add(line, ",\"samples\":%" PRIu64, r->samples);
    add_timing(line);
    add_number(line, ",\"round_s\":", r->timing.round_s, 6);
    add_number(line, ",\"samples_per_s\":", tokens_per_s(r), 1);
    add(line, "}}\n");
}

void line_language_update_text(struct line *line, const struct control_update *r)
{
    begin(line);
    add(line, "Update %" PRIu64 "\tLoss: %.4f\tPerplexity: %.2f\tLr: %g\tTokens/s: %.0f\n", r->update,
        r->loss, exp(r->loss), r->lr, tokens_per_s(r));
}

void line_language_update_progress(struct line *line, const struct control_update *r)
{
    begin(line);
    add(line, "update %" PRIu64 "  loss %.4f  perplexity %.2f  %.0f tokens/s", r->update, r->loss,
        exp(r->loss), tokens_per_s(r));
}

/* One count of every worker; `member` is its place in struct control_status. */
static void add_counts(struct line *line, const char *name, const struct line_holdings *holdings,
                       size_t member)
{
    add(line, ",\"%s\":[", name);
    for (uint32_t i = 0; i < holdings->workers; i++) {
        uint32_t count;
        memcpy(&count, (const char *)&holdings->of[i] + member, sizeof count);
        add(line, "%s%u", i > 0 ? "," : "", count);
    }
    add(line, "]");
}

/* Of each worker, whose references its `users` are: an object with the workers that have some. What a worker
 * says beyond the room for all that a job can have is left out. */
static void add_peers(struct line *line, const struct line_holdings *holdings)
{
    const size_t end = line->length + LINE_PEERS_BYTES - (size_t)LINE_PEER_BYTES * holdings->workers;
    add(line, ",\"users_of\":[");
    for (uint32_t i = 0; i < holdings->workers; i++) {
        const char *before = "";
        add(line, "%s{", i > 0 ? "," : "");
        for (uint32_t peer = 0; peer < holdings->workers; peer++) {
            const uint32_t users = holdings->of[i].users_of[peer];
            if (users == 0 || line->length > end)
                continue;
            add(line, "%s\"%u\":%u", before, peer, users);
            before = ",";
        }
        add(line, "}");
    }
    add(line, "]");
}

void line_language_epoch_json(struct line *line, const struct control_epoch *r,
                              const struct line_holdings *holdings)
{
    begin(line);
    add(line, "{\"epoch\":%" PRIu64 ",\"update\":%" PRIu64, r->epoch, r->update);
    add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    add_number(line, ",\"perplexity\":", exp(r->loss), ALL_DIGITS);
    if (r->evaluated > 0) {
        add_number(line, ",\"held_out\":{\"loss\":", r->evaluation_loss, ALL_DIGITS);
        add_number(line, ",\"perplexity\":", exp(r->evaluation_loss), ALL_DIGITS);
        add_number(line, ",\"unigram_perplexity\":", r->unigram_perplexity, ALL_DIGITS);
        add(line, ",\"tokens\":%" PRIu64 "}", r->evaluated);
    } else {
        add(line, ",\"held_out\":null");
    }
    add_timing(line);
    add_number(line, ",\"epoch_s\":", r->timing.epoch_s, 6);
    add_number(line, ",\"evaluation_s\":", r->timing.evaluation_s, 6);
    add_counts(line, "objects", holdings, offsetof(struct control_status, objects));
    add_counts(line, "references", holdings, offsetof(struct control_status, references));
    add_counts(line, "users", holdings, offsetof(struct control_status, users));
    add_peers(line, holdings);
    add_counts(line, "contexts", holdings, offsetof(struct control_status, contexts));
    add_counts(line, "pieces", holdings, offsetof(struct control_status, pieces));
    add(line, "}}\n");
}

void line_language_epoch_text(struct line *line, const struct control_epoch *r)
{
    begin(line);
    add(line, "Epoch %" PRIu64 "\tLoss: %.4f\tPerplexity: %.2f", r->epoch, r->loss, exp(r->loss));
    if (r->evaluated > 0)
        add(line, "\tHeld-out loss: %.4f\tHeld-out perplexity: %.2f\t(unigram: %.2f; %" PRIu64 " tokens)",
            r->evaluation_loss, exp(r->evaluation_loss), r->unigram_perplexity, r->evaluated);
    add(line, "\n");
}

void line_language_finish(struct line *line, const char *why, uint64_t updates,
                          const struct line_holdings *holdings, double job_s)
{
    uint64_t objects = 0, references = 0, users = 0, contexts = 0, pieces = 0;
    for (uint32_t i = 0; i < holdings->workers; i++) {
        objects += holdings->of[i].objects;
        references += holdings->of[i].references;
        users += holdings->of[i].users;
        contexts += holdings->of[i].contexts;
        pieces += holdings->of[i].pieces;
    }
    begin(line);
    add(line, "{\"event\":\"%s\",\"updates\":%" PRIu64, why, updates);
    add(line, ",\"objects\":%" PRIu64 ",\"references\":%" PRIu64 ",\"users\":%" PRIu64, objects, references,
        users);
    add(line, ",\"contexts\":%" PRIu64 ",\"pieces\":%" PRIu64, contexts, pieces);
    add_timing(line);
    add(line, ",\"job_s\":%.6f}}\n", job_s);
}

/* ---- reading them back ---- */

struct line_key line_key_of_json(const char *text)
{
    uint64_t number, epoch;
    if (sscanf(text, "{\"update\":%20" SCNu64 ",", &number) == 1)
        return (struct line_key){.kind = LINE_UPDATE, .number = number};
    if (sscanf(text, "{\"epoch\":%20" SCNu64 ",\"update\":%20" SCNu64 ",", &epoch, &number) == 2)
        return (struct line_key){.kind = LINE_EPOCH, .number = number, .epoch = epoch};
    return (struct line_key){.kind = LINE_OTHER};
}

struct line_key line_key_of_text(const char *text)
{
    uint64_t number;
    if (sscanf(text, "Update %20" SCNu64 "\t", &number) == 1)
        return (struct line_key){.kind = LINE_UPDATE, .number = number};
    if (sscanf(text, "Epoch %20" SCNu64 "\t", &number) == 1)
        return (struct line_key){.kind = LINE_EPOCH, .number = number, .epoch = number};
    return (struct line_key){.kind = LINE_OTHER};
}

/* The members stand side by side, right in front of `timing`; without an evaluation the first is null. */
bool line_evaluated(const char *text, size_t *bytes)
{
    static const char *const firsts[] = {",\"held_out\":", ",\"test_loss\":"};
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        const char *at = strstr(text, firsts[i]);
        if (at == NULL)
            continue;
        *bytes = (size_t)(at - text);
        return strncmp(at + strlen(firsts[i]), "null", 4) != 0;
    }
    *bytes = strlen(text);
    return false;
}
