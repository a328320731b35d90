/* The page: one HTML file with its style and script, compiled into the plug-in (page.html). */
#ifndef DAEMON_WATCH_HTTP_PAGE_H
#define DAEMON_WATCH_HTTP_PAGE_H

#include <stddef.h>

/* The page with `nonce` in the places that say NONCE. The caller frees it. NULL: no memory. */
char *page_with_nonce(const char *nonce, size_t *length);

#endif
