"""The routes of Claude's memory."""

from fastapi import APIRouter
from starlette.responses import JSONResponse

from hms_memory_gateway import documentation
from hms_memory_gateway.problems import BodyInvalid
from hms_memory_tool.commands import MEMORY_TOOL, RECALL_TOOL

from .dependencies import CallDep

router = APIRouter(prefix="/memory", tags=["memory"], default_response_class=JSONResponse)


@router.post("/command", **documentation.COMMAND)
async def run_command(call: CallDep) -> JSONResponse:
    """Execute one memory command: the `input` of a `memory` tool_use block, as Claude wrote it.

    What Claude can mend is an answer too, with `is_error`: pass both on in the `tool_result`.
    With an `Idempotency-Key` the same request can be sent again: it is done once.
    """
    return JSONResponse(await call.blocks.execute(call.namespace, call.body, call.key))


@router.post("/recall", **documentation.RECALL)
async def recall(call: CallDep) -> JSONResponse:
    """Find the memory files most relevant to a query: the `input` of a `memory_recall` block."""
    return JSONResponse(await call.blocks.recall(call.namespace, call.body))


@router.post("/tool-results", **documentation.TOOL_RESULTS)
async def tool_results(call: CallDep) -> JSONResponse:
    """Answer every memory block of an assistant's message, in order.

    Send the `content` of the message as the Messages API returned it; append what comes back as
    the `content` of a user message. Blocks of other tools are passed over. The `id` of each block
    is its idempotency key, so the same message can be sent again.
    """
    content = call.body.get("content")
    if not isinstance(content, list):
        raise BodyInvalid("`content` has to be the list of blocks of an assistant's message.")
    return JSONResponse({"content": await call.blocks.tool_results(call.namespace, content)})


@router.get("/tools", **documentation.TOOLS)
async def tools() -> JSONResponse:
    """The tools to declare in a Messages request."""
    return JSONResponse({"tools": [MEMORY_TOOL, RECALL_TOOL]})
