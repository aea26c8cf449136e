"""What to say when the Hub refuses a model, does not know it, or cannot be reached."""

from mlx_diffusiongemma.errors import HubError

# What huggingface_hub raises over an answer that is no JSON, or not the object it should be.
NOT_A_HUB = (ValueError, KeyError, TypeError, AttributeError)


class HubUnreachableError(HubError):
    """The Hub does not answer now, so a copy in the cache may serve instead."""


def explain(error: Exception, repo: str, revision: str) -> HubError:
    """What a person needs to know about an error of huggingface_hub or of the connection."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo}"
    if isinstance(error, errors.GatedRepoError):
        return HubError(
            f"`{repo}` is gated, and the Hub does not give it to you yet",
            hint=f"accept its licence at {page}, then run `hf auth login` or set HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(
            f"`{repo}` has no revision `{revision}`", hint=f"{page}/commits/main lists its commits"
        )
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.RepositoryNotFoundError) or _lacks_model(error):
        return HubError(
            f"the Hub has no model `{repo}`, or it is private",
            hint="check the spelling; for a private model, run `hf auth login` or set HF_TOKEN",
        )
    if status == 401:
        return HubError(
            f"`{repo}` is private or gated, and the Hub does not give it to you",
            hint=f"run `hf auth login` or set HF_TOKEN; {page} says what else it wants",
        )
    if status is None or status >= 500 or status in (408, 429):
        cause = f"HTTP {status}" if status else str(error).split("\n")[0] or type(error).__name__
        if isinstance(error, NOT_A_HUB):
            cause = "what answers there is not a Hub"
        return HubUnreachableError(
            f"the Hub at {constants.ENDPOINT} cannot be reached ({cause})",
            hint=f"check the network and HF_ENDPOINT: `{repo}` is not on this disk; "
            "`demo` and folders need no network",
        )
    return HubError(
        f"the Hub refuses `{repo}` (HTTP {status})",
        hint=f"open {page} in a browser; HF_TOKEN must belong to an account that may read it",
    )


def _lacks_model(error: Exception) -> bool:
    """Whether a mirror, which sends no code of the Hub's own, does not know the model."""
    from huggingface_hub import errors

    if not isinstance(error, errors.HfHubHTTPError):
        return False
    return error.response.status_code == 404 and "/api/models/" in str(error.response.url)
