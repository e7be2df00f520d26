"""/agent/v1/: requests of shippers, authenticated by a learner's secret."""

from django.urls import path

from portal.agent_files import views

urlpatterns = [
    path("job", views.job, name="agent-job"),
    path("code", views.code, name="agent-code"),
    path("checkpoints/<int:n>/files/<int:file_id>", views.checkpoint_file, name="agent-checkpoint-file"),
    path("checkpoints/<int:n>/verify", views.checkpoint_verify, name="agent-checkpoint-verify"),
    path("results/<int:file_id>", views.result_file, name="agent-result-file"),
    path("uploads/<int:blob_id>", views.upload, name="agent-upload"),
    path("uploads/<int:blob_id>/parts", views.upload_parts, name="agent-upload-parts"),
    path("uploads/<int:blob_id>/finish", views.upload_finish, name="agent-upload-finish"),
]
