/* Writes a run's status as metrics, a function for each group. Supervisor process; its only thread. */
#include "daemon/watch/openmetrics.h"

#include "kernels/base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct page {
    FILE *out;
    bool is_classic, names_run;
    const struct run_status *status;
    const char *name, *suffix; /* of the samples that follow */
};

/* ---- one metric ---- */

/* Says what the samples that follow are. `name` has no _total; `unit`: "" where there is none. */
static void begin(struct page *page, const char *name, const char *type, const char *unit, const char *help)
{
    page->name = name;
    page->suffix = strcmp(type, "counter") == 0 ? "_total" : "";
    const char *total = page->is_classic ? page->suffix : "";
    fprintf(page->out, "# TYPE coalesced_%s%s %s\n", name, total, type);
    if (!page->is_classic && unit[0] != '\0')
        fprintf(page->out, "# UNIT coalesced_%s %s\n", name, unit);
    fprintf(page->out, "# HELP coalesced_%s%s %s\n", name, total, help);
}

/* A label's value. Of the control characters OpenMetrics escapes the line feed alone. */
static void write_label(FILE *out, const char *before, const char *value)
{
    fprintf(out, "%s=\"", before);
    for (const char *at = value; *at != '\0'; at++) {
        char piece[TEXT_ESCAPED_BYTES];
        if ((unsigned char)*at < ' ' && *at != '\n')
            fputc(*at, out);
        else
            fputs(text_escape(piece, *at), out);
    }
    fputc('"', out);
}

/* node_exporter joins the files of all runs of a host, so each sample in a file names its run. By HTTP a run
 * is a target of its own. */
static void write_name(const struct page *page, const char *suffix, const char *labels)
{
    fprintf(page->out, "coalesced_%s%s", page->name, suffix);
    if (!page->names_run && labels[0] == '\0')
        return;
    fprintf(page->out, "{%s", labels);
    if (page->names_run)
        write_label(page->out, labels[0] == '\0' ? "run" : ",run", page->status->path);
    fputc('}', page->out);
}

/* A sample that is no number is left out: it is not known. `labels` are without braces. */
static void sample(const struct page *page, const char *labels, double value)
{
    if (!isfinite(value))
        return;
    write_name(page, page->suffix, labels);
    fprintf(page->out, " %.17g\n", value);
}

static void gauge(struct page *page, const char *name, const char *unit, double value, const char *help)
{
    if (!isfinite(value))
        return;
    begin(page, name, "gauge", unit, help);
    sample(page, "", value);
}

static void counter(struct page *page, const char *name, const char *unit, double value, const char *help)
{
    begin(page, name, "counter", unit, help);
    sample(page, "", value);
}

/* Writes a bucket. A limit is a float, "1.0", as OpenMetrics asks: it is a label, and a Prometheus that
 * rewrites labels to that form (version 3) then has the same series as one that does not. */
static void write_bucket(const struct page *page, double limit, uint64_t up_to)
{
    char number[32], label[48];
    snprintf(number, sizeof number, "%.10g", limit);
    snprintf(label, sizeof label, "le=\"%s%s\"", isinf(limit) ? "+Inf" : number,
             isinf(limit) || strpbrk(number, ".e") != NULL ? "" : ".0");
    write_name(page, "_bucket", label);
    fprintf(page->out, " %llu\n", (unsigned long long)up_to);
}

/* Counts by bucket become sums up to each limit. */
static void write_histogram(struct page *page, const struct run_histogram *histogram)
{
    const int last = histogram->buckets - 1;
    uint64_t up_to = 0;
    begin(page, histogram->metric, "histogram", histogram->unit, histogram->help);
    for (int i = 0; i <= last; i++) {
        up_to += histogram->counts[i];
        write_bucket(page, i < last ? histogram->limit(i) : (double)INFINITY, up_to);
    }
    write_name(page, "_count", "");
    fprintf(page->out, " %llu\n", (unsigned long long)up_to);
    write_name(page, "_sum", "");
    fprintf(page->out, " %.17g\n", histogram->sum);
}

/* Writes two histograms, from the `first` of run_histograms on. */
static void write_histograms(struct page *page, int first)
{
    struct run_histogram all[RUN_HISTOGRAMS];
    run_histograms(all, page->status->totals);
    write_histogram(page, &all[first]);
    write_histogram(page, &all[first + 1]);
}

/* ---- the job ---- */

/* One text for all kinds of job: node_exporter refuses a name with two. */
#define LOSS_HELP "The newest episode's or update's loss."

static void write_run(struct page *page)
{
    const struct run_status *status = page->status;
    /* The classic format has no type "info"; its sample has the same name. */
    begin(page, page->is_classic ? "run_info" : "run", page->is_classic ? "gauge" : "info", "",
          "The run and the program.");
    fprintf(page->out, "coalesced_run_info{");
    write_label(page->out, "name", status->job->name);
    write_label(page->out, ",directory", status->path);
    write_label(page->out, ",state", status->state);
    write_label(page->out, ",version", COALESCED_VERSION);
    if (page->names_run)
        write_label(page->out, ",run", status->path);
    fprintf(page->out, "} 1\n");
    gauge(page, "up_seconds", "seconds", status->up_s, "The time since the supervisor began.");
    gauge(page, "start_time_seconds", "seconds", status->started_unix_s,
          "When the supervisor began, Unix time.");
    gauge(page, "training", "", strcmp(status->state, "training") == 0, "1 while the job trains, else 0.");
    gauge(page, "generation", "", status->generation, "How often all workers have begun.");
    gauge(page, "checkpoint_age_seconds", "seconds", status->checkpoint_age_s,
          "The age of the newest checkpoint.");
    if (status->checkpoint > 0)
        gauge(page, "checkpoint_number", "", (double)status->checkpoint,
              "The episode or update of the newest checkpoint.");
}

static void write_episodes(struct page *page)
{
    const struct run_totals *t = page->status->totals;
    const struct control_episode *newest = &t->episode;
    counter(page, "episodes", "", (double)t->episodes, "Episodes of the job that have ended.");
    counter(page, "environment_steps", "", (double)t->environment_steps, "Steps of environments.");
    counter(page, "learning_seconds", "seconds", t->learn_s, "The time in which the policy learned.");
    gauge(page, "episode", "", (double)page->status->update, "The newest episode's number.");
    gauge(page, "running_reward", "", page->status->running_reward, "The running reward.");
    gauge(page, "episode_reward", "", t->has_episode ? newest->reward : (double)NAN,
          "The newest episode's reward.");
    gauge(page, "loss", "", t->has_episode ? newest->loss : (double)NAN, LOSS_HELP);
    write_histograms(page, 0);
}

static void write_figures(struct page *page)
{
    const struct control_figures *figures = &page->status->totals->episode.figures;
    if (!page->status->totals->has_episode || !page->status->totals->episode.has_figures)
        return;
    for (size_t i = 0; i < control_figure_count; i++) {
        const struct control_figure *figure = &control_figure_list[i];
        if (control_figure_is_shown(figure, figures, CONTROL_IN_METRICS))
            gauge(page, figure->name, "", control_figure_value(figure, figures), figure->help);
    }
    if (page->status->totals->has_evaluation)
        gauge(page, "evaluation_reward", "", page->status->totals->evaluation.mean_reward,
              "The newest evaluation's mean reward.");
}

static void write_updates(struct page *page)
{
    const struct run_totals *t = page->status->totals;
    const bool is_language = page->status->job->kind == JOB_MODEL_PARALLEL;
    counter(page, "updates", "", (double)t->updates, "Updates of the model.");
    counter(page, is_language ? "tokens" : "samples", "", (double)t->samples,
            is_language ? "Tokens that were learned from." : "Samples that counted.");
    gauge(page, "update", "", (double)page->status->update, "The newest update's number.");
    gauge(page, "loss", "", t->has_update ? t->update.loss : (double)NAN, LOSS_HELP);
    gauge(page, "learning_rate", "", t->has_update ? t->update.lr : (double)NAN, "The learning rate.");
    if (t->has_epoch && t->epoch.evaluated > 0)
        gauge(page, "evaluation_loss", "", t->epoch.evaluation_loss, "The loss on held-out data.");
    if (is_language)
        return;
    if (t->has_epoch && t->epoch.evaluated > 0)
        gauge(page, "evaluation_accuracy_ratio", "ratio",
              (double)t->epoch.correct / (double)t->epoch.evaluated, "The accuracy on held-out data.");
    counter(page, "late_contributions", "", (double)t->late,
            "Contributions that came too late and were dropped.");
    write_histograms(page, RUN_FIRST_ROUND_HISTOGRAM);
}

/* ---- the workers ---- */

/* One sample for each role: the sum over its workers, which follow each other. */
static void write_roles(struct page *page, const char *name, const char *type, const char *help)
{
    const struct run_status *status = page->status;
    const struct worker_status *end = status->workers + status->worker_count;
    const bool counts_restarts = strcmp(type, "counter") == 0;
    begin(page, name, type, "", help);
    for (const struct worker_status *w = status->workers, *next; w < end; w = next) {
        char labels[96];
        double sum = 0;
        for (next = w; next < end && strcmp(next->role, w->role) == 0; next++)
            sum += counts_restarts ? next->restarts : strcmp(next->state, "running") == 0;
        snprintf(labels, sizeof labels, "role=\"%.32s\"", w->role);
        sample(page, labels, sum);
    }
}

/* One sample for each worker. */
static void write_uses(struct page *page)
{
    static const struct {
        const char *name, *type, *unit, *help;
    } uses[] = {{"worker_cpu_seconds", "counter", "seconds", "Processor time of a worker's process."},
                {"worker_resident_bytes", "gauge", "bytes", "Memory of a worker's process."},
                {"worker_work", "counter", "",
                 "An observer's environment steps, an agent's rows, a server's updates, a trainer's steps."},
                {"worker_queue_length", "gauge", "", "Requests or contributions that wait in a worker."}};
    for (size_t u = 0; u < sizeof uses / sizeof uses[0]; u++) {
        begin(page, uses[u].name, uses[u].type, uses[u].unit, uses[u].help);
        for (uint32_t i = 0; i < page->status->worker_count; i++) {
            const struct worker_status *w = &page->status->workers[i];
            const double values[] = {(double)w->use.cpu_us * 1e-6, (double)w->use.resident_bytes,
                                     (double)w->use.work, w->use.queue};
            char labels[96];
            snprintf(labels, sizeof labels, "role=\"%.32s\",worker=\"%u\"", w->role, w->worker);
            if (w->has_use)
                sample(page, labels, values[u]);
        }
    }
}

static void write_drops(struct page *page)
{
    static const char *const reasons[] = {"bad", "stranger", "duplicate", "stale", "timeout"};
    begin(page, "dropped_messages", "counter", "", "Messages that workers have dropped.");
    for (size_t r = 0; r < sizeof reasons / sizeof reasons[0]; r++) {
        char labels[64];
        double sum = 0;
        for (uint32_t i = 0; i < page->status->worker_count; i++) {
            const struct control_beat *use = &page->status->workers[i].use;
            const uint64_t drops[] = {use->bad, use->strangers, use->duplicates, use->stale, use->timeouts};
            sum += (double)drops[r];
        }
        snprintf(labels, sizeof labels, "reason=\"%s\"", reasons[r]);
        sample(page, labels, sum);
    }
}

/* ---- all ---- */

char *openmetrics_text(const struct run_status *status, enum openmetrics_form form, size_t *length)
{
    char *text = NULL;
    struct page page = {.out = open_memstream(&text, length),
                        .is_classic = form != OPENMETRICS,
                        .names_run = form == OPENMETRICS_TEXTFILE,
                        .status = status};
    if (page.out == NULL)
        return NULL;
    write_run(&page);
    if (status->job->kind == JOB_REINFORCE) {
        write_episodes(&page);
        write_figures(&page);
    } else {
        write_updates(&page);
    }
    write_roles(&page, "worker_restarts", "counter", "Starts of workers after their first one.");
    write_roles(&page, "workers_running", "gauge", "Workers that are ready.");
    write_uses(&page);
    write_drops(&page);
    if (form == OPENMETRICS)
        fprintf(page.out, "# EOF\n");
    const bool is_whole = ferror(page.out) == 0;
    if (fclose(page.out) == 0 && is_whole)
        return text;
    free(text);
    return NULL;
}
