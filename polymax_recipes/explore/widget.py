"""The widget of a picture in a notebook, by anywidget: the same drawing module as the page."""

from typing import Any

from polymax_recipes.explore.picture import Picture, drawing_module, drawing_style

MISSING = "a picture in a notebook needs anywidget: pip install 'polymax[explore]'"

# anywidget asks for a default export with a function `render`
RENDER = """
export default {
  render({ model, el }) {
    el.classList.add("pmx");
    const show = () => draw(el, model.get("data"));
    model.on("change:data", show);
    show();
  },
};
"""


def widget(picture: Picture) -> Any:
    """The widget that shows a picture, and draws it again whenever its `data` are set."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError(MISSING) from error

    class PictureWidget(anywidget.AnyWidget):
        """A picture, synchronised with the notebook."""

        _esm = drawing_module() + RENDER
        _css = drawing_style()
        data = traitlets.Dict().tag(sync=True)

    return PictureWidget(data=picture.data)
