/* How a job ends: the order in which workers leave, and what a failure sets off. Supervisor process; its only
 * thread; no lock. */
#include "daemon/supervise/supervise_internal.h"
#include "kernels/base/log.h"

enum { GRACE_US = 2000000 };

/* The worker reports once more what it holds before it exits. A worker that dies instead holds nothing. */
static void order_exit(struct supervisor *s, struct child *child)
{
    if (child->state != CHILD_STARTING && child->state != CHILD_READY)
        return;
    s->holdings[child->start.worker] = (struct control_status){0};
    child_order(child, CONTROL_EXIT, NULL, 0);
    child->state = CHILD_LEAVING;
}

/* A worker leaves before the workers that it connects to, so that they receive its BYE: first the workers
 * that do not listen, then the listeners from the highest number down. */
void supervise_leave_next(struct supervisor *s)
{
    bool others_live = false;
    if (!s->closing)
        return;
    for (unsigned i = s->roster.listeners; i < s->count; i++) {
        order_exit(s, &s->children[i]);
        others_live |= s->children[i].state != CHILD_GONE;
    }
    unsigned listener = others_live ? 0 : s->roster.listeners;
    while (listener > 0 && s->children[listener - 1].state == CHILD_GONE)
        listener--;
    if (listener > 0)
        order_exit(s, &s->children[listener - 1]);
}

void supervise_close(struct supervisor *s)
{
    s->closing = true;
    supervise_forget_restarts(s);
    supervise_leave_next(s);
}

void supervise_hurry(struct supervisor *s)
{
    s->hurried = true;
    supervise_forget_restarts(s);
    for (unsigned i = 0; i < s->count; i++)
        child_order(&s->children[i], CONTROL_HURRY, NULL, 0);
    s->kill_at = monotime_earliest(s->kill_at, monotime_add_us(monotime_now(), GRACE_US));
}

void supervise_fail(struct supervisor *s, enum status status, const char *why)
{
    if (s->outcome.status == STATUS_OK)
        error_set(&s->outcome, status, "%s", why);
    else
        log_error("%s", why);
    supervise_hurry(s);
    supervise_close(s);
}
