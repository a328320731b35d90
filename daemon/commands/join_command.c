/* `coalesced join`: adds this host to a running job. The command's process; after the fork of the workers it
 * is the supervisor of this host. One thread. */
#include "daemon/commands/commands.h"
#include "daemon/hosts/follow.h"
#include "daemon/hosts/rendezvous.h"
#include "daemon/process/service.h"

enum status join_job(const struct arguments *arguments, struct job *job, struct error *error)
{
    enum { PATIENCE_S = 60 };
    static struct rendezvous rendezvous;
    (void)job;
    struct rendezvous_flags flags = arguments->rendezvous;
    const struct follow_config config = {.rendezvous = &rendezvous,
                                         .run = NULL,
                                         .patience_s = PATIENCE_S,
                                         .brings = arguments->brings,
                                         .role = arguments->role};
    service_init();
    enum status status = flags.given ? STATUS_OK : key_files_own(&flags.host, flags.keys, error);
    flags.count = flags.given ? flags.count : (uint16_t)(flags.host + 1);
    flags.given = true;
    if (status == STATUS_OK)
        status = rendezvous_find(&rendezvous, &flags, NULL, MONOTIME_NEVER, error);
    if (status == STATUS_OK && rendezvous_is_leader(&rendezvous))
        status =
            error_set(error, STATUS_INVALID, "host 0 leads: expected the key of another host to join with");
    return status == STATUS_OK ? follow_leader(&config, error) : status;
}
