/* Ends a job: notes why, and has the workers leave in order. Supervisor process; its only thread; no lock. */
#include "daemon/supervise/job_end.h"

#include "kernels/base/log.h"

enum { GRACE_US = 2000000 };

/* The worker reports once more what it holds before it exits. A worker that dies instead holds nothing. */
static void order_exit(struct generation *g, struct child *child)
{
    if (child->state != CHILD_STARTING && child->state != CHILD_READY)
        return;
    g->holdings[child->start.worker] = (struct control_status){0};
    child_order(child, CONTROL_EXIT, NULL, 0);
    child->state = CHILD_LEAVING;
}

void job_end_leave_next(const struct job_end *end, struct generation *g)
{
    bool others_live = false;
    if (!end->closing)
        return;
    for (unsigned i = g->roster.listeners; i < g->count; i++) {
        order_exit(g, &g->children[i]);
        others_live |= g->children[i].state != CHILD_GONE;
    }
    unsigned listener = others_live ? 0 : g->roster.listeners;
    while (listener > 0 && g->children[listener - 1].state == CHILD_GONE)
        listener--;
    if (listener > 0)
        order_exit(g, &g->children[listener - 1]);
}

void job_end_close(struct job_end *end, struct generation *g)
{
    end->closing = true;
    generation_forget_starts(g);
    job_end_leave_next(end, g);
}

void job_end_hurry(struct job_end *end, struct generation *g)
{
    end->hurried = true;
    generation_forget_starts(g);
    for (unsigned i = 0; i < g->count; i++)
        child_order(&g->children[i], CONTROL_HURRY, NULL, 0);
    end->kill_at = monotime_earliest(end->kill_at, monotime_add_us(monotime_now(), GRACE_US));
}

void job_end_fail(struct job_end *end, struct generation *g, enum status status, const char *why)
{
    if (end->outcome.status == STATUS_OK)
        error_set(&end->outcome, status, "%s", why);
    else
        log_error("%s", why);
    job_end_hurry(end, g);
    job_end_close(end, g);
}

void job_end_fail_by_worker(struct job_end *end, struct generation *g, enum status status, const char *why,
                            bool is_follow_on)
{
    if (end->outcome.status == STATUS_OK) {
        end->is_follow_on = is_follow_on;
    } else if (end->is_follow_on && !is_follow_on) {
        log_error("%s", end->outcome.text);
        end->outcome.status = STATUS_OK;
        end->is_follow_on = false;
    }
    job_end_fail(end, g, status, why);
}
